"""Errors about loops that XLA cannot compile, with the user's lines."""

from collections.abc import Sequence
from typing import Any

from keras_tpu_estimator.tf1 import internals
from keras_tpu_estimator.tf1.functions import LOOPS
from keras_tpu_estimator.tf1.source_lines import line_of

_UNBOUNDED = "fixed tensor list size"
_GROWING = "Input and output shapes of loop body do not match"


def explained_loop(text: str, ops: Sequence[Any]) -> ValueError | None:
    """Returns an error that names the loops that XLA cannot compile, if any."""
    loops = [op for op in ops if op.type in LOOPS]
    if _UNBOUNDED in text:
        found = [op for op in loops if _is_unbounded(op)]
        must = (
            "A loop must have a known number of rounds if its gradient is "
            "taken or if it grows a TensorArray."
        )
        advice = "Pass `maximum_iterations=` to tf.while_loop."
    elif _GROWING in text:
        found = [op for op in loops if _is_growing(op)]
        must = "The tensors of a loop must keep their shapes."
        advice = (
            "Pad them to their final size before the loop, and write each "
            "round's values at its position, such as with a TensorArray."
        )
    else:
        return None
    if not found:
        return None
    names = [f"{op.name}, made at {line_of(op)}" for op in found]
    return ValueError(f"{must} Received: {'; '.join(names)}. {advice}")


def _is_unbounded(loop: Any) -> bool:
    """Returns whether the number of rounds of a loop is unknown."""
    return bool(internals.static_value(loop.inputs[1]) == -1)


def _is_growing(loop: Any) -> bool:
    """Returns whether tensors of a loop have unknown shapes."""
    return any(not each.shape.is_fully_defined() for each in loop.outputs)
