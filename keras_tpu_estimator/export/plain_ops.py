"""A graph in ops that other runtimes know, where Keras writes rarer ones."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

_PLACES = ("ArgMax", "ArgMin")
_ON_THE_WAY = ("Cast", "Identity", "Reshape")


def in_plain_ops(graph: "GraphDef", tensors: Collection[str]) -> "GraphDef":
    """What tensors of a graph are made of, in ops of the same results.

    ONNX, OpenVINO and TensorFlow Lite have no `Bitcast`, or no `Erfc`.
    """
    nodes = {node.name: node for node in graph.node}
    for node in nodes.values():
        if node.op in _PLACES:
            _take_zeros_as_one(node, nodes)
        elif node.op == "Erfc":
            _become_erf(node, nodes, graph)
    kept = _all_that_make(tensors, {node.name: node for node in graph.node})
    used = type(graph)(versions=graph.versions, library=graph.library)
    used.node.extend(node for node in graph.node if node.name in kept)
    return used


def _take_zeros_as_one(node: "NodeDef", nodes: Mapping[str, "NodeDef"]) -> None:
    """Has a place found without telling -0.0 from 0.0, as Keras has it.

    It looks at the sign bit, for devices that flush what is nearly zero.
    """
    reader, chosen = node, nodes[_name(node.input[0])]
    while chosen.op in _ON_THE_WAY:
        reader, chosen = chosen, nodes[_name(chosen.input[0])]
    if chosen.op != "SelectV2":
        return
    condition, _, values = chosen.input
    if _looks_at_bits(condition, values, nodes):
        reader.input[0] = values


def _looks_at_bits(tensor: str, values: str, nodes: Mapping[str, "NodeDef"]) -> bool:
    """Whether a tensor is made of the bits of another one."""
    made_of = _all_that_make([tensor], nodes, {_name(values)})
    return any(
        nodes[name].op == "Bitcast" and nodes[name].input[0] == values
        for name in made_of
    )


def _all_that_make(
    tensors: Collection[str],
    nodes: Mapping[str, "NodeDef"],
    beyond: Collection[str] = (),
) -> set[str]:
    """Names of the nodes that make tensors, but for what lies beyond some."""
    waiting, found = list(tensors), set[str]()
    while waiting:
        name = _name(waiting.pop())
        if name not in found and name not in beyond:
            found.add(name)
            waiting.extend(nodes[name].input)
    return found


def _become_erf(
    node: "NodeDef", nodes: Mapping[str, "NodeDef"], graph: "GraphDef"
) -> None:
    """Makes `erfc(x)` of a node `1 - erf(x)`, and `erfc(-x * c)` GELU's form.

    That is `1 + erf(x * c)`, by which TensorFlow Lite knows it.
    """
    import tensorflow as tf

    def add(name: str, op: str, *inputs: str) -> "NodeDef":
        new = graph.node.add(name=f"{node.name}/{name}", op=op, input=inputs)
        new.attr["T"].CopyFrom(node.attr["T"])
        return new

    one = graph.node.add(name=f"{node.name}/one", op="Const")
    one.attr["dtype"].CopyFrom(node.attr["T"])
    one.attr["value"].tensor.CopyFrom(
        tf.make_tensor_proto(1, tf.as_dtype(node.attr["T"].type))
    )
    (argument,) = node.input
    product = nodes[_name(argument)]
    negated = nodes[_name(product.input[0])] if product.op == "Mul" else product
    if product.op == "Mul" and negated.op == "Neg":
        argument = add("scaled", "Mul", negated.input[0], product.input[1]).name
        node.op = "AddV2"
    else:
        node.op = "Sub"
    node.input[:] = [one.name, add("erf", "Erf", argument).name]


def _name(tensor: str) -> str:
    """The name of the node that makes a tensor, or comes before it."""
    return tensor.removeprefix("^").split(":")[0]
