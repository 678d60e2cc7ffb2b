"""Loops whose tensors grow. XLA cannot compile them, so the host runs them.

In evaluation and prediction, the host can copy the values of their variables.
"""

from collections.abc import Sequence
from typing import Any

from keras_tpu_estimator.base.common.logs import warn_once
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.tf1.graph import internals
from keras_tpu_estimator.tf1.graph.definitions import LOOPS, reachable
from keras_tpu_estimator.tf1.graph.source_lines import line_of


def growing_loops(graph: Any, fetches: Sequence[Any], mode: str) -> list[str]:
    """Returns the loops that the host runs outside of TRAIN, and warns about them."""
    loops = [op for op in reachable(graph, fetches) if op.type in LOOPS]
    found = [op for op in loops if _grows(op)]
    call = "evaluate" if mode == ModeKeys.EVAL else "predict"
    for op in found:
        warn_once(
            f"{call} runs {op.name}, made at {line_of(op)}, on the host, because "
            "its tensors change their shapes. Each batch copies the variables "
            "of this part to the host. To use the devices, pad the tensors to "
            "their final size before the loop."
        )
    return [op.name for op in found]


def _grows(loop: Any) -> bool:
    """Returns whether the first round of a loop changes the shape of a tensor."""
    if all(each.shape.is_fully_defined() for each in loop.outputs):
        return False
    after = _shapes_after_a_round(loop)
    return any(
        not tensor.shape.is_compatible_with(shape)
        for tensor, shape in zip(loop.inputs, after, strict=True)
    )


def _shapes_after_a_round(loop: Any) -> list[Any]:
    """Returns the shapes of a loop's tensors after its first round."""
    import tensorflow as tf

    body = loop.get_attr("body").name
    definition, arguments, results = internals.definition_of_function(loop.graph, body)
    for node in definition.node:
        node.attr.pop("_class", None)
    with tf.Graph().as_default():
        given = {
            name: _like(tensor)
            for name, tensor in zip(arguments, loop.inputs, strict=True)
        }
        found = tf.graph_util.import_graph_def(definition, given, results)
    return [tensor.shape for tensor in found]


def _like(tensor: Any) -> Any:
    """Returns a tensor of the same shape, or a variable, without a value."""
    import tensorflow as tf

    if tensor.op.type != "VarHandleOp":
        return tf.compat.v1.placeholder(tensor.dtype, tensor.shape)
    get = tensor.op.get_attr
    return tf.raw_ops.VarHandleOp(dtype=get("dtype"), shape=get("shape"))
