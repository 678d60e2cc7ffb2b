"""Updates of some rows of a variable, for which XLA has no operations.

All rows are updated, and then the other rows get their old values back.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from keras_tpu_estimator.tf1.functions import Node, data_inputs, source
from keras_tpu_estimator.tf1.writing import Writer, add_copy, type_number

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
    done = rewriting.update(node, _DENSE + kind, inputs, old)
    new = rewriting.read("new", variables, [done])
    kept = rewriting.keep(variables, is_meant, new, old)
    node.Clear()
    node.name, node.op = rewriting.name, "NoOp"
    node.input.extend(kept)


@dataclasses.dataclass(frozen=True)
class _Rewriting:
    """Writes the nodes of one update.

    Attributes:
        name: The name of the node.
        dtype: The number of the variable's dtype.
        indices: The number of the dtype of the indices.
        writer: Adds nodes.
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
            self._node(
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
        own = {"T": self.dtype}
        last = self.writer.constant(f"{self.name}/kte_last", np.int32(-1))
        places = self._node(
            "places",
            "ExpandDims",
            [indices, last],
            {"T": self.indices, "Tdim": type_number("int32")},
        )
        zeros = self._node("zeros", "ZerosLike", [like], own, "y")
        ones = self._node("ones", "OnesLike", [gradient], own, "y")
        scattered = {**own, "Tindices": self.indices}
        dense = self._node(
            "dense", "TensorScatterAdd", [zeros, places, gradient], scattered
        )
        touched = self._node(
            "touched", "TensorScatterUpdate", [zeros, places, ones], scattered
        )
        types = {"SrcT": self.dtype, "DstT": type_number("bool")}
        return dense, self._node("is_meant", "Cast", [touched], types, "y")

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
            value = self._node(
                f"value_{number}",
                "SelectV2",
                [is_meant, *values],
                {"T": self.dtype},
            )
            done = self._node(
                f"keep_{number}",
                "AssignVariableOp",
                [variable, value],
                {"dtype": self.dtype},
            )
            assigned.append(_waiting(done))
        return assigned

    def _node(
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
