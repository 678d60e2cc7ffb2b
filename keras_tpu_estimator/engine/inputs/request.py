"""What a call wants of its input."""

import dataclasses
from collections.abc import Callable
from typing import Any

from keras_tpu_estimator.engine.inputs.axes import BatchAxes
from keras_tpu_estimator.engine.inputs.batch import PairOf, pair_of
from keras_tpu_estimator.engine.inputs.batch_source import BatchSource
from keras_tpu_estimator.engine.inputs.checks import BatchCheck
from keras_tpu_estimator.engine.inputs.deployment import InputPlan
from keras_tpu_estimator.engine.inputs.input_shapes import InputShapes
from keras_tpu_estimator.engine.inputs.source_kinds import source_of_call
from keras_tpu_estimator.engine.inputs.stacking import StackSize
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.params import copied
from keras_tpu_estimator.ground.base.shown import shown
from keras_tpu_estimator.ground.base.signatures import argument_names
from keras_tpu_estimator.ground.base.types import InputFn


@dataclasses.dataclass(frozen=True)
class InputRequest:
    """What one call of `train`, `evaluate` or `predict` wants of its input.

    Attributes:
        plan: The calls of `input_fn` to make.
        params_for: Returns the `params` of a call, from its additional ones.
        config: The run configuration, for an `input_fn` that asks for it.
        axes: Where the batch is in each tensor.
        repeat: Whether arrays, in place of a stream, are fed for ever.
        chunk: How many steps are wanted at once.
        room: How many steps a device program has room for, if they are small.
            Defaults to 1.
        checks_size: Whether batches must have the size asked for.
        stack_size: How much is stacked. Defaults to all.
        state_max_bytes: How large a state of the input may be that is saved.
            Defaults to any.
        shapes: Counts the shapes of batches. Defaults to a new count without a
            limit.
        source_of: Makes a source of what a call returns, which it makes, given
            the call and its number. Defaults to `source_of_call`.
        pair_of: Returns the features and the labels of what is a batch.
            Defaults to `batch.pair_of`.
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
        """A new check of the batches of one call."""
        return BatchCheck(
            self.plan.calls[0].batch_size,
            is_any_size=not self.checks_size,
            is_padded=self.mode == ModeKeys.PREDICT,
            may_share=not self.plan.is_split and self.axes.axes is None,
            shapes=self.shapes,
        )


def call_input_fn(input_fn: InputFn, mode: str, params: Any, config: Any) -> Any:
    """Calls an `input_fn`, by the names of its arguments.

    Args:
        input_fn: Takes `params` and any of `mode`, `config` and
            `input_context`.
        params: The user's hyperparameters with `batch_size` and `context`.

    Raises:
        TypeError: It is not callable.
        ValueError: It does not take `params`.
    """
    if not callable(input_fn):
        raise TypeError(
            "`input_fn` should be a function of params. Received: "
            f"{shown(input_fn)}. Pass the "
            "function itself, without calling it."
        )
    names = {*argument_names(input_fn)}
    if "params" not in names:
        raise ValueError(
            "`input_fn` should take an argument `params`: TPUEstimator passes "
            "the batch size in params['batch_size']. Received a function of "
            f"{sorted(names)}."
        )
    available = {"mode": mode, "config": config, "input_context": None}
    kwargs = {name: copied(value) for name, value in available.items() if name in names}
    return input_fn(params=params, **kwargs)
