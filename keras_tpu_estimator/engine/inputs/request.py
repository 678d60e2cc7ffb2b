"""The request of `train`, `evaluate` or `predict` for input."""

import dataclasses
from collections.abc import Callable
from typing import Any

from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.params import argument_names, copied
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import InputFn
from keras_tpu_estimator.engine.inputs.axes import BatchAxes
from keras_tpu_estimator.engine.inputs.batch import PairOf, pair_of
from keras_tpu_estimator.engine.inputs.batch_source import BatchSource
from keras_tpu_estimator.engine.inputs.checks import BatchCheck
from keras_tpu_estimator.engine.inputs.deployment import InputPlan
from keras_tpu_estimator.engine.inputs.input_shapes import InputShapes
from keras_tpu_estimator.engine.inputs.sources import source_of_call
from keras_tpu_estimator.engine.inputs.stacking import StackSize


@dataclasses.dataclass(frozen=True)
class InputRequest:
    """The request of one call of `train`, `evaluate` or `predict` for input.

    Attributes:
        plan: The calls of `input_fn` to make.
        params_for: Returns the `params` of a call, from its additional ones.
        config: The run configuration, for an `input_fn` with this argument.
        axes: The batch axis of each tensor.
        repeat: Whether a source of one batch repeats forever.
        chunk: The number of steps to read at once.
        room: The number of steps that a device program has room for, if they
            are small.
        checks_size: Whether batches must have the requested size.
        stack_size: The size limit of a stack.
        state_max_bytes: The maximum number of bytes of a saved iterator state.
        shapes: Counts the shapes of batches.
        source_of: Makes a call, and returns the source for its result and
            number.
        pair_of: Returns the features and the labels of a batch.
    """

    mode: str
    plan: InputPlan
    params_for: Callable[[dict[str, Any]], Any]
    config: Any = None
    axes: BatchAxes = BatchAxes()
    repeat: bool = True
    chunk: int = 1
    room: int = 1
    checks_size: bool = True
    stack_size: StackSize = StackSize()
    state_max_bytes: int | None = None
    shapes: InputShapes = dataclasses.field(default_factory=InputShapes)
    source_of: Callable[[Callable[[], Any], int], BatchSource] = source_of_call
    pair_of: PairOf = pair_of

    def check(self) -> BatchCheck:
        """Returns a new check for the batches of one call."""
        return BatchCheck(
            self.plan.calls[0].batch_size,
            is_any_size=not self.checks_size,
            is_padded=self.mode == ModeKeys.PREDICT,
            may_share=not self.plan.is_split and self.axes.axes is None,
            shapes=self.shapes,
        )


def call_input_fn(input_fn: InputFn, mode: str, params: Any, config: Any) -> Any:
    """Calls an `input_fn` with the arguments that it declares.

    Args:
        input_fn: A function of `params` and any of `mode`, `config` and
            `input_context`.
        params: The user's hyperparameters with `batch_size` and `context`.

    Raises:
        TypeError: It is not callable.
        ValueError: It lacks the argument `params`.
    """
    if not callable(input_fn):
        raise TypeError(
            "`input_fn` must be a function of params. Received: "
            f"{shown(input_fn)}. Pass the "
            "function itself, without calling it."
        )
    names = {*argument_names(input_fn)}
    if "params" not in names:
        raise ValueError(
            "`input_fn` must take an argument `params`, because TPUEstimator "
            "passes the batch size in params['batch_size']. Received a function "
            f"of {sorted(names)}. Add the argument."
        )
    available = {"mode": mode, "config": config, "input_context": None}
    kwargs = {name: copied(value) for name, value in available.items() if name in names}
    return input_fn(params=params, **kwargs)
