"""Writing nodes of a graph or of a function."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_tpu_estimator.tf1.functions import Node


def type_number(dtype: str) -> int:
    """Returns the number of a dtype in protocol buffers."""
    import tensorflow as tf

    number: int = tf.as_dtype(dtype).as_datatype_enum
    return number


def set_inputs(node: Node, data: Sequence[str]) -> None:
    """Replaces the data inputs of a node, and keeps its control inputs."""
    controls = [name for name in node.input if name.startswith("^")]
    del node.input[:]
    node.input.extend([*data, *controls])


def add_copy(nodes: Any, node: Node, inputs: Sequence[str]) -> Node:
    """Adds a copy of a node with these inputs and without a device."""
    copy = nodes.add()
    copy.CopyFrom(node)
    copy.device = ""
    copy.attr.pop("_class", None)
    del copy.input[:]
    copy.input.extend(inputs)
    return copy


@dataclasses.dataclass(frozen=True)
class Writer:
    """Adds nodes to a graph or a function.

    Attributes:
        nodes: The list of nodes.
        is_function: Whether the nodes are in a function, where references contain the
            names of outputs.
    """

    nodes: Any
    is_function: bool

    def constant(self, name: str, value: np.ndarray | np.generic) -> str:
        """Adds a constant, and returns a reference to it."""
        import tensorflow as tf

        node = self.nodes.add(name=name, op="Const")
        tensor = tf.make_tensor_proto(value)
        node.attr["value"].tensor.CopyFrom(tensor)
        node.attr["dtype"].type = tensor.dtype
        return self._reference(name, "output")

    def node(
        self,
        name: str,
        op: str,
        inputs: Sequence[str],
        types: Mapping[str, int],
        output: str = "output",
        number: int = 0,
    ) -> str:
        """Adds a node, and returns a reference to one of its outputs.

        Args:
            name: The name of the node.
            op: The operation type.
            inputs: References to its inputs.
            types: The attributes that are types.
            output: The name of the output in the op definition.
            number: The position of the output. Defaults to 0.
        """
        node = self.nodes.add(name=name, op=op)
        node.input.extend(inputs)
        for key, dtype in types.items():
            node.attr[key].type = dtype
        return self._reference(name, output, number)

    def _reference(self, name: str, output: str, number: int = 0) -> str:
        if self.is_function:
            return f"{name}:{output}:0"
        return f"{name}:{number}" if number else name
