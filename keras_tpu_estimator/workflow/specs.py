"""The arguments of `train_and_evaluate`."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from keras_tpu_estimator.api.config.validation import whole_steps
from keras_tpu_estimator.api.hooks.checkpoint_saver import (
    CheckpointSaverListener,
)
from keras_tpu_estimator.api.hooks.hook_list import validate_hooks, validate_listeners
from keras_tpu_estimator.api.hooks.session_run_hook import Hook
from keras_tpu_estimator.base.common.field_checks import (
    check_int,
    is_number,
    suggesting,
    tuple_of,
)
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import InputFn
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.workflow.exporters import Exporter, validate_exporters

_HOOKS_THAT_RUN: Any = dataclasses.field(init=False, repr=False, compare=False)


@suggesting
@dataclasses.dataclass(frozen=True)
class TrainSpec:
    """The training part of `train_and_evaluate`.

    The counterpart of `tf.estimator.TrainSpec`.

    Args:
        input_fn: As in `TPUEstimator.train`.
        max_steps: The global step to stop at. Defaults to `None`, for the end
            of the input.
        hooks: As in `TPUEstimator.train`. Defaults to none.
        saving_listeners: As in `TPUEstimator.train`. Defaults to none.

    Raises:
        TypeError: A field has a wrong type.
        ValueError: `max_steps` is not positive.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> spec = kte.TrainSpec(lambda params: [], max_steps=1000)
    >>> spec.hooks
    ()
    """

    input_fn: InputFn
    max_steps: int | None = None
    hooks: Iterable[Hook] | None = None
    saving_listeners: Iterable[CheckpointSaverListener] | None = None
    _adopted: tuple[Hook, ...] = _HOOKS_THAT_RUN

    def __post_init__(self) -> None:
        _check_input_fn(self.input_fn)
        # The estimator checks whether it supports fractions.
        whole_steps("max_steps", self.max_steps, use_tpu=False)
        listeners = validate_listeners(self.saving_listeners)
        _set_hooks(self)
        object.__setattr__(self, "saving_listeners", listeners)


@suggesting
@dataclasses.dataclass(frozen=True)
class EvalSpec:
    """The evaluation part of `train_and_evaluate`, with its exports.

    The counterpart of `tf.estimator.EvalSpec`.

    Args:
        input_fn: As in `TPUEstimator.evaluate`.
        steps: Batches to evaluate; `None` for all of the input. Defaults to
            100.
        name: The name of the evaluation, as in `TPUEstimator.evaluate`.
            Defaults to `None`.
        hooks: As in `TPUEstimator.evaluate`. Defaults to none.
        exporters: An `Exporter`, or a list of them, called after each
            evaluation. Defaults to none.
        start_delay_secs: Seconds before the first evaluation in a separate
            process. Defaults to 120.
        throttle_secs: The minimum of seconds between the starts of two
            evaluations; 0 for every checkpoint. Defaults to 600.
        throttle_steps: The minimum of steps between two evaluations, which
            replaces `throttle_secs`. Defaults to `None`.

    Raises:
        TypeError: A field has a wrong type.
        ValueError: A number is out of range, or the exporters' names are not
            distinct.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> spec = kte.EvalSpec(
    ...     lambda params: [], steps=None, name="test", throttle_steps=500)
    >>> spec.exporters
    ()
    """

    input_fn: InputFn
    steps: int | None = 100
    name: str | None = None
    hooks: Iterable[Hook] | None = None
    exporters: Exporter | Iterable[Exporter] | None = None
    start_delay_secs: float = 120
    throttle_secs: float = 600
    throttle_steps: int | None = dataclasses.field(default=None, kw_only=True)
    _adopted: tuple[Hook, ...] = _HOOKS_THAT_RUN

    def __post_init__(self) -> None:
        _check_input_fn(self.input_fn)
        whole_steps("steps", self.steps, use_tpu=False)
        if self.name is not None and not isinstance(self.name, str):
            raise TypeError(
                f"`name` must be a string. Received: {shown(self.name)}. Pass "
                "a name such as 'test', or None."
            )
        paths.check_name("`name`", f"eval_{self.name}")
        _check_seconds("start_delay_secs", self.start_delay_secs)
        _check_seconds("throttle_secs", self.throttle_secs)
        if self.throttle_steps is not None:
            check_int("throttle_steps", self.throttle_steps, minimum=1)
        exporters = validate_exporters(self.exporters)
        _set_hooks(self)
        object.__setattr__(self, "exporters", exporters)


def hooks_that_run(spec: TrainSpec | EvalSpec) -> tuple[Hook, ...]:
    """Returns the hooks of a spec, with TensorFlow hooks as this package's."""
    return spec._adopted


def _set_hooks(spec: TrainSpec | EvalSpec) -> None:
    """Stores the user's hooks, and the hooks that run for them."""
    hooks = tuple_of("hooks", spec.hooks, Hook, "hook")
    object.__setattr__(spec, "hooks", hooks)
    object.__setattr__(spec, "_adopted", validate_hooks(hooks))


def _check_input_fn(input_fn: Any) -> None:
    if not callable(input_fn):
        raise TypeError(
            f"`input_fn` must be a function. Received: {shown(input_fn)}. "
            "Pass a function of `params` that returns the data."
        )


def _check_seconds(name: str, value: Any) -> None:
    if not is_number(value):
        raise TypeError(
            f"`{name}` must be a number. Received: {shown(value)}. Pass "
            "seconds, 0 or more."
        )
    if not value >= 0:
        raise ValueError(
            f"`{name}` must be 0 or more. Received: {value}. Pass seconds."
        )
