"""One-hot tensors of indices whose dtype has no number for each place.

XLA would count places in that dtype, and begin anew at the 257th, say.
"""

from keras_tpu_estimator.tf1.functions import Node, data_inputs
from keras_tpu_estimator.tf1.writing import Writer, set_inputs, type_number

_NARROW = ("int8", "uint8")


def is_of_narrow(node: Node) -> bool:
    """Whether a node makes one-hot tensors of such indices."""
    return node.op == "OneHot" and (node.attr["TI"].type in map(type_number, _NARROW))


def widen(node: Node, writer: Writer) -> None:
    """Makes the indices of a node int32."""
    indices, *others = data_inputs(node)
    types = {"SrcT": node.attr["TI"].type, "DstT": type_number("int32")}
    wide = writer.node(f"{node.name}/kte_wide", "Cast", [indices], types, "y")
    set_inputs(node, [wide, *others])
    node.attr["TI"].type = types["DstT"]
