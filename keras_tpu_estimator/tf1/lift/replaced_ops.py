"""Operations that XLA lacks, or computes otherwise, replaced by others.

* An update of some rows of a variable becomes an update of all rows, after which the
  other rows get their old values back.
* Other operations on variables become a read, the same operation on a tensor, and an
  assignment if they write.
* One-hot tensors get wider indices if their dtype is too narrow for all positions. XLA
  counts positions in that dtype, so uint8 would start again at position 256.
* `ArgMax` and `ArgMin` skip NaN, as on TensorFlow's CPU. XLA returns its position.
* An update of some rows of a tensor, such as `InplaceUpdate`, becomes a scatter.
* `CrossReplicaSum` becomes an all-reduce.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_tpu_estimator.tf1.graph.definitions import (
    Node,
    Writer,
    add_copy,
    data_inputs,
    set_inputs,
    source,
    type_number,
)

_SPARSE, _DENSE = "ResourceSparseApply", "ResourceApply"


@dataclasses.dataclass(frozen=True)
class _Signature:
    """The positions of the inputs of an update.

    Attributes:
        variables: The number of variables at the start: the variable and its slots.
        gradient: The position of the gradient, which the indices follow.
    """

    variables: int
    gradient: int


_SIGNATURES = {
    "Adadelta": _Signature(3, 6),
    "Adagrad": _Signature(2, 3),
    "AdagradDA": _Signature(3, 3),
    "AdagradV2": _Signature(2, 4),
    "CenteredRMSProp": _Signature(4, 8),
    "Ftrl": _Signature(3, 3),
    "FtrlV2": _Signature(3, 3),
    "KerasMomentum": _Signature(2, 3),
    "Momentum": _Signature(2, 3),
    "ProximalAdagrad": _Signature(2, 5),
    "ProximalGradientDescent": _Signature(1, 4),
    "RMSProp": _Signature(3, 7),
}


def is_sparse_update(node: Node) -> bool:
    """Returns whether a node updates some rows of a variable and its slots."""
    prefix, _, kind = node.op.partition(_SPARSE)
    return not prefix and kind in _SIGNATURES


def make_dense(node: Node, writer: Writer) -> None:
    """Replaces a node by one that waits for an update of all rows."""
    rewriting = _Rewriting(
        node.name, node.attr["T"].type, node.attr["Tindices"].type, writer
    )
    kind = node.op.removeprefix(_SPARSE)
    signature = _SIGNATURES[kind]
    inputs = data_inputs(node)
    controls = [name for name in node.input if name.startswith("^")]
    variables = inputs[: signature.variables]
    old = rewriting.read("old", variables, controls)
    gradient, indices = inputs[signature.gradient : signature.gradient + 2]
    dense, is_meant = rewriting.spread(old[0], gradient, indices)
    inputs[signature.gradient : signature.gradient + 2] = [dense]
    update = rewriting.update(node, _DENSE + kind, inputs, old)
    new = rewriting.read("new", variables, [update])
    assignments = rewriting.keep(variables, is_meant, new, old)
    node.Clear()
    node.name, node.op = rewriting.name, "NoOp"
    node.input.extend(assignments)


@dataclasses.dataclass(frozen=True)
class _Rewriting:
    """The writer of the nodes that replace one node.

    Attributes:
        dtype: The number of the variable's dtype.
        indices: The number of the dtype of the indices.
    """

    name: str
    dtype: int
    indices: int
    writer: Writer

    def read(
        self, what: str, variables: Sequence[str], controls: Sequence[str]
    ) -> list[str]:
        """Returns the values of variables, read after some nodes."""
        return [
            self.add(
                f"{what}_{number}",
                "ReadVariableOp",
                [variable, *controls],
                {"dtype": self.dtype},
                "value",
            )
            for number, variable in enumerate(variables)
        ]

    def spread(self, like: str, gradient: str, indices: str) -> tuple[str, str]:
        """Returns a gradient of all rows, and a mask of the rows that had one."""
        element_type = {"T": self.dtype}
        last = self.writer.constant(f"{self.name}/kte_last", np.int32(-1))
        positions = self.add(
            "places",
            "ExpandDims",
            [indices, last],
            {"T": self.indices, "Tdim": type_number("int32")},
        )
        zeros = self.add("zeros", "ZerosLike", [like], element_type, "y")
        ones = self.add("ones", "OnesLike", [gradient], element_type, "y")
        scattered = {**element_type, "Tindices": self.indices}
        dense = self.add(
            "dense", "TensorScatterAdd", [zeros, positions, gradient], scattered
        )
        touched = self.add(
            "touched", "TensorScatterUpdate", [zeros, positions, ones], scattered
        )
        types = {"SrcT": self.dtype, "DstT": type_number("bool")}
        return dense, self.add("is_meant", "Cast", [touched], types, "y")

    def update(
        self, node: Node, op: str, inputs: Sequence[str], after: Sequence[str]
    ) -> str:
        """Updates all rows, and returns a reference to wait for."""
        waiting = [*inputs, *map(_waiting, after)]
        new = add_copy(self.writer.nodes, node, waiting)
        new.name, new.op = f"{self.name}/kte_update", op
        del new.attr["Tindices"]
        return _waiting(new.name)

    def keep(
        self,
        variables: Sequence[str],
        is_meant: str,
        new: Sequence[str],
        old: Sequence[str],
    ) -> list[str]:
        """Assigns new values to the masked rows, and returns references to wait for."""
        assigned = []
        parts = zip(variables, new, old, strict=True)
        for number, (variable, *values) in enumerate(parts):
            value = self.add(
                f"value_{number}",
                "SelectV2",
                [is_meant, *values],
                {"T": self.dtype},
            )
            assignment = self.add(
                f"keep_{number}",
                "AssignVariableOp",
                [variable, value],
                {"dtype": self.dtype},
            )
            assigned.append(_waiting(assignment))
        return assigned

    def add(
        self,
        what: str,
        op: str,
        inputs: Sequence[str],
        types: dict[str, int],
        output: str = "output",
    ) -> str:
        name = f"{self.name}/kte_{what}"
        return self.writer.node(name, op, inputs, types, output)


def _waiting(reference: str) -> str:
    """Returns a control input that waits for a reference."""
    return f"^{source(reference)}"


_NARROW = ("int8", "uint8")


def is_of_narrow(node: Node) -> bool:
    """Returns whether a node makes one-hot tensors of narrow indices."""
    return node.op == "OneHot" and (node.attr["TI"].type in map(type_number, _NARROW))


def widen(node: Node, writer: Writer) -> None:
    """Casts the indices of a node to int32."""
    indices, *operands = data_inputs(node)
    types = {"SrcT": node.attr["TI"].type, "DstT": type_number("int32")}
    wide = writer.node(f"{node.name}/kte_wide", "Cast", [indices], types, "y")
    set_inputs(node, [wide, *operands])
    node.attr["TI"].type = types["DstT"]


_EXTREMES = {"ArgMax": ("Greater", "min"), "ArgMin": ("Less", "max")}


def is_of_extreme(node: Node) -> bool:
    """Returns whether a node returns the positions of extreme floats."""
    return node.op in _EXTREMES and bool(_dtype(node).is_floating)


def skip_nan(node: Node, writer: Writer) -> None:
    """Replaces NaN by the number that TensorFlow compares the first element with."""
    compare, limit_name = _EXTREMES[node.op]
    values, *operands = data_inputs(node)
    dtype = _dtype(node)
    limit = np.array(getattr(dtype, limit_name), dtype.as_numpy_dtype)
    name, types = node.name, {"T": node.attr["T"].type}
    least = writer.constant(f"{name}/kte_limit", limit)
    is_beyond = writer.node(f"{name}/kte_beyond", compare, [values, least], types, "z")
    selected = [is_beyond, values, least]
    numbers = writer.node(f"{name}/kte_numbers", "SelectV2", selected, types)
    set_inputs(node, [numbers, *operands])


def _dtype(node: Node) -> Any:
    import tensorflow as tf

    return tf.as_dtype(node.attr["T"].type)


@dataclasses.dataclass(frozen=True)
class Plain:
    """An operation on a tensor.

    Attributes:
        op: The operation type. It has the same inputs except that a tensor replaces the
            variable.
        dtype: The attribute of the original operation with the variable's dtype.
        types: Pairs of type attributes: of the plain operation, and of the original
            one.
        is_written: Whether the result is assigned to the variable.
    """

    op: str
    dtype: str
    types: tuple[tuple[str, str], ...]
    is_written: bool = False


_SCATTERED = (("T", "T"), ("Tindices", "Tindices"))
PLAIN = {
    "ResourceGatherNd": Plain(
        "GatherNd", "dtype", (("Tparams", "dtype"), ("Tindices", "Tindices"))
    ),
    "ResourceScatterNdMax": Plain("TensorScatterMax", "T", _SCATTERED, True),
    "ResourceScatterNdMin": Plain("TensorScatterMin", "T", _SCATTERED, True),
}


def has_plain(node: Node) -> bool:
    """Returns whether a node has a plain counterpart."""
    return node.op in PLAIN


def make_plain(node: Node, writer: Writer) -> None:
    """Replaces a node by its plain operation on the value of the variable."""
    plain = PLAIN[node.op]
    variable, *operands = data_inputs(node)
    controls = [name for name in node.input if name.startswith("^")]
    dtype = node.attr[plain.dtype].type
    read_types = {"dtype": dtype}
    read = writer.node(
        f"{node.name}/kte_read",
        "ReadVariableOp",
        [variable, *controls],
        read_types,
        "value",
    )
    types = {new: node.attr[old].type for new, old in plain.types}
    for name in list(node.attr):
        del node.attr[name]
    if not plain.is_written:
        node.op = plain.op
        set_inputs(node, [read, *operands])
        for name, number in types.items():
            node.attr[name].type = number
        return
    new = writer.node(f"{node.name}/kte_new", plain.op, [read, *operands], types)
    node.op = "AssignVariableOp"
    set_inputs(node, [variable, new])
    node.attr["dtype"].type = dtype


_OF_ROWS = {
    "InplaceAdd": "TensorScatterAdd",
    "InplaceSub": "TensorScatterSub",
    "InplaceUpdate": "TensorScatterUpdate",
}
_COPY = "DeepCopy"


def is_of_rows(node: Node) -> bool:
    """Returns whether a node updates some rows of a tensor, or copies it before."""
    return node.op in _OF_ROWS or node.op == _COPY


def scatter(node: Node, writer: Writer) -> None:
    """Replaces an update of some rows of a tensor by a scatter.

    The number of rows is added to negative indices, and subtracted from large ones.
    """
    tensor, *operands = data_inputs(node)
    dtype = node.attr["T"].type
    new = _scattered(node, writer, tensor, *operands) if operands else tensor
    # Nodes of functions refer to the output `y`, which a scatter does not have.
    node.op = "Cast"
    del node.attr["T"]
    set_inputs(node, [new])
    for name in ("SrcT", "DstT"):
        node.attr[name].type = dtype


def _scattered(node: Node, writer: Writer, tensor: str, rows: str, values: str) -> str:
    """Adds the nodes of a scatter, and returns a reference to its result."""
    dtype, integer = node.attr["T"].type, type_number("int32")
    add = _Rewriting(node.name, dtype, integer, writer).add

    def constant(what: str, value: np.ndarray | np.generic) -> str:
        return writer.constant(f"{node.name}/kte_{what}", value)

    of_integers = {"T": integer}
    shape = add("shape", "Shape", [tensor], {"T": dtype, "out_type": integer})
    first, one = np.zeros(1, "int32"), np.ones(1, "int32")
    part = [shape, constant("first", first), constant("one", one)]
    size = add("size", "Slice", part, {**of_integers, "Index": integer})
    valid = add("valid", "FloorMod", [rows, size], of_integers, "z")
    last = constant("last", np.int32(-1))
    types = {**of_integers, "Tdim": integer}
    positions = add("places", "ExpandDims", [valid, last], types)
    inputs, types = [tensor, positions, values], {"T": dtype, "Tindices": integer}
    return add("new", _OF_ROWS[node.op], inputs, types)


SUM = "CrossReplicaSum"
# Related operations that are not supported.
UNSUPPORTED = frozenset(
    {
        "AllToAll",
        "CollectiveGather",
        "CollectiveGatherV2",
        "CollectivePermute",
        "CollectiveReduce",
        "CollectiveReduceV2",
        "NcclAllReduce",
    }
)


def is_total(node: Node, nodes: Mapping[str, Node]) -> bool:
    """Returns whether a node sums over all devices, which form one group."""
    if node.op != SUM:
        return False
    groups = nodes.get(source(data_inputs(node)[1]))
    if groups is None or groups.op != "Const":
        return False
    dims = groups.attr["value"].tensor.tensor_shape.dim
    return len(dims) == 2 and dims[0].size == 1


def make_all_reduce(node: Node) -> None:
    """Makes a sum over cores the op that TensorFlow's bridge to XLA knows."""
    if node.op == SUM:
        node.op = "XlaAllReduce"
        node.attr["reduce_op"].s = b"Add"
        node.attr["mode"].s = b"CrossReplica"


_REPLACEMENTS = (
    (is_sparse_update, make_dense),
    (has_plain, make_plain),
    (is_of_narrow, widen),
    (is_of_extreme, skip_nan),
    (is_of_rows, scatter),
)


def replace(node: Node, writer: Writer) -> None:
    """Replaces a node if XLA lacks its operation, or computes it otherwise."""
    for is_replaced, change in _REPLACEMENTS:
        if is_replaced(node):
            change(node, writer)
            return
    make_all_reduce(node)
