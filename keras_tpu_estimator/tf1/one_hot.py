"""One-hot tensors of indices whose dtype is too narrow for all positions.

XLA counts positions in that dtype, so uint8 would start again at position 256.
"""

from keras_tpu_estimator.tf1.functions import Node, data_inputs
from keras_tpu_estimator.tf1.writing import Writer, set_inputs, type_number

_NARROW = ("int8", "uint8")


def is_of_narrow(node: Node) -> bool:
    """Returns whether a node makes one-hot tensors of narrow indices."""
    return node.op == "OneHot" and (node.attr["TI"].type in map(type_number, _NARROW))


def widen(node: Node, writer: Writer) -> None:
    """Casts the indices of a node to int32."""
    indices, *others = data_inputs(node)
    types = {"SrcT": node.attr["TI"].type, "DstT": type_number("int32")}
    wide = writer.node(f"{node.name}/kte_wide", "Cast", [indices], types, "y")
    set_inputs(node, [wide, *others])
    node.attr["TI"].type = types["DstT"]
