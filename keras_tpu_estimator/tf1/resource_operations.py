"""Operations on variables that XLA lacks, replaced by operations on tensors.

Each becomes a read of the variable and the plain operation, and an assignment if the
operation writes.
"""

import dataclasses

from keras_tpu_estimator.tf1.functions import Node, data_inputs
from keras_tpu_estimator.tf1.writing import Writer, set_inputs


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
    variable, *others = data_inputs(node)
    controls = [name for name in node.input if name.startswith("^")]
    dtype = node.attr[plain.dtype].type
    own = {"dtype": dtype}
    read = writer.node(
        f"{node.name}/kte_read",
        "ReadVariableOp",
        [variable, *controls],
        own,
        "value",
    )
    types = {new: node.attr[old].type for new, old in plain.types}
    for name in list(node.attr):
        del node.attr[name]
    if not plain.is_written:
        node.op = plain.op
        set_inputs(node, [read, *others])
        for name, number in types.items():
            node.attr[name].type = number
        return
    new = writer.node(f"{node.name}/kte_new", plain.op, [read, *others], types)
    node.op = "AssignVariableOp"
    set_inputs(node, [variable, new])
    node.attr["dtype"].type = dtype
