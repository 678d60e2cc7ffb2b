"""The objects of a `tf.train.Checkpoint`, for the checkpoints of its variables.

`tf.train.Checkpoint.restore` finds a variable through objects: an object graph in the
checkpoint refers to the key of each variable, which begins with its name.
"""

from collections.abc import Container, Iterator
from typing import Any

from keras_tpu_estimator.files.formats.tensorflow_format import VALUE


def is_checkpoint(value: Any) -> bool:
    """Returns whether a value is a `tf.train.Checkpoint`."""
    import tensorflow as tf

    return isinstance(value, tf.train.Checkpoint | tf.compat.v1.train.Checkpoint)


def serialized_objects(checkpoint: Any, names: Container[str]) -> bytes:
    """Returns the object graph of a `tf.train.Checkpoint`.

    It refers to the variables in the checkpoint, which have these names.
    """
    return _ObjectGraph(checkpoint, names).proto.SerializeToString()


class _ObjectGraph:
    """The message with all objects below a `tf.train.Checkpoint`, root first."""

    def __init__(self, root: Any, names: Container[str]):
        import tensorflow as tf
        from tensorflow.core.protobuf import trackable_object_graph_pb2

        self._variable = tf.Variable
        self._names = names
        self.proto = trackable_object_graph_pb2.TrackableObjectGraph()
        view = tf.train.TrackableView(root)
        self._objects = list(view.descendants())
        self._ids = {id(item): n for n, item in enumerate(self._objects)}
        for item in self._objects:
            self._add(item)
        for node, item in zip(self.proto.nodes, self._objects, strict=False):
            for name, child in view.children(item).items():
                # Some wrappers of lists are new in each call, and have no variables.
                if id(child) in self._ids:
                    node.children.add(node_id=self._ids[id(child)], local_name=name)
        # The loop adds a node for each slot.
        for number, item in enumerate([*self._objects]):
            for variable, name, slot in self._slots(item):
                self.proto.nodes[number].slot_variables.add(
                    original_variable_node_id=self._ids[id(variable)],
                    slot_name=name,
                    slot_variable_node_id=self._id(slot),
                )

    def _id(self, item: Any) -> int:
        """Returns the number of an object's node, and adds the node if necessary."""
        if id(item) not in self._ids:
            self._ids[id(item)] = len(self._objects)
            self._objects.append(item)
            self._add(item)
        return self._ids[id(item)]

    def _add(self, item: Any) -> None:
        node = self.proto.nodes.add()
        if not isinstance(item, self._variable):
            return
        name = item.op.name
        if name in self._names:
            node.attributes.add(
                name="VARIABLE_VALUE", full_name=name, checkpoint_key=name + VALUE
            )

    def _slots(self, item: Any) -> Iterator[tuple[Any, str, Any]]:
        """Yields the variable, the name and the value of each slot of an optimizer."""
        if not hasattr(item, "get_slot_names") or not hasattr(item, "get_slot"):
            return
        for variable in [*self._objects]:
            for name in item.get_slot_names():
                slot = _slot(item, variable, name)
                if slot is not None and isinstance(variable, self._variable):
                    yield variable, name, slot


def _slot(optimizer: Any, variable: Any, name: str) -> Any:
    """Returns a slot, or `None` for an object without one."""
    try:
        return optimizer.get_slot(variable, name)
    except (AttributeError, KeyError):
        return None
