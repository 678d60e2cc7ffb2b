"""Operations on variables that XLA lacks, by the same ones on tensors.

Each becomes a read of the variable and the plain operation; what writes also
becomes an assignment.
"""

import dataclasses

from keras_tpu_estimator.tf1.functions import Node, data_inputs
from keras_tpu_estimator.tf1.writing import Writer, set_inputs


@dataclasses.dataclass(frozen=True)
class Plain:
    """An operation on a tensor.

    Attributes:
        op: Its type. Its tensor and the other inputs are those of the
            operation on a variable.
        dtype: The attribute of that one that is the variable's dtype.
        types: Its attributes that are types, and those of that one.
        is_written: Whether the variable gets its result.
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
    """Whether a node is such an operation."""
    return node.op in PLAIN


def make_plain(node: Node, writer: Writer) -> None:
    """Makes a node the operation on what is read of its variable."""
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
