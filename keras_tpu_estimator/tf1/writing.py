"""Writing nodes of a graph or of a function."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_tpu_estimator.tf1.functions import Node


def type_number(dtype: str) -> int:
    """The number that protocol buffers have for a dtype."""
    import tensorflow as tf

    number: int = tf.as_dtype(dtype).as_datatype_enum
    return number


def set_inputs(node: Node, data: Sequence[str]) -> None:
    """Gives a node other data inputs; control inputs stay."""
    controls = [name for name in node.input if name.startswith("^")]
    del node.input[:]
    node.input.extend([*data, *controls])


def add_copy(nodes: Any, node: Node, inputs: Sequence[str]) -> Node:
    """Adds a copy of a node with these inputs, which may run anywhere."""
    copy = nodes.add()
    copy.CopyFrom(node)
    copy.device = ""
    copy.attr.pop("_class", None)
    del copy.input[:]
    copy.input.extend(inputs)
    return copy


@dataclasses.dataclass(frozen=True)
class Writer:
    """Writes nodes beside others.

    Attributes:
        nodes: Where nodes are added.
        is_function: Whether they are those of a function, which refer to the
            outputs of others by the names of these.
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
            op: The type of op.
            inputs: References to its inputs.
            types: The attributes that are types.
            output: What the op calls that output.
            number: Which one it is. Defaults to the first.
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
