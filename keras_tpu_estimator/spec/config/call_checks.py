"""Checks of what users pass to `train` and `evaluate`."""

from keras_tpu_estimator.ground.base.field_checks import is_int
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.shown import shown


def check_train_steps(steps: object, max_steps: object) -> None:
    """Checks how long to train.

    Raises:
        ValueError: Both are given, or one is not positive.
        TypeError: One is no integer.
    """
    if steps is not None and max_steps is not None:
        raise ValueError(
            "Cannot use both `steps` and `max_steps`. Received: "
            f"steps={steps}, max_steps={max_steps}. `steps` counts from the "
            "last checkpoint, `max_steps` from the first step."
        )
    for name, value in (("steps", steps), ("max_steps", max_steps)):
        if value is not None:
            _check_positive(name, value)


def check_validation(input_fn: object, steps: object) -> None:
    """Checks what to evaluate on while training.

    Raises:
        ValueError: There are steps and no input, or not a positive number.
        TypeError: The input is no function, or the steps are no integer.
    """
    if input_fn is not None and not callable(input_fn):
        raise TypeError(
            "`validation` should be an input_fn. Received: "
            f"{type(input_fn).__name__}. Pass a function of `params` that "
            "returns the data to evaluate on."
        )
    if steps is None:
        return
    if input_fn is None:
        raise ValueError(
            "`validation_steps` says how much of `validation` to evaluate on. "
            f"Received: {steps} and no `validation`. Pass an input_fn, too."
        )
    _check_positive("validation_steps", steps)


def check_mode(mode: object) -> None:
    """Checks the name of a mode."""
    modes = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)
    if mode not in modes:
        raise ValueError(
            f"`mode` should be one of {modes}, which ModeKeys has as TRAIN, "
            f"EVAL and PREDICT. Received: {shown(mode)}."
        )


def check_some_steps(steps: object, max_steps: object) -> None:
    """Checks that training on cores has an end.

    Raises:
        ValueError: Neither is given.
    """
    if steps is None and max_steps is None:
        raise ValueError(
            "With use_tpu=True one of `steps` and `max_steps` must be set. "
            "Received None for both. Pass the number of steps to make."
        )


def check_eval_steps(steps: object) -> None:
    """Checks how long to evaluate.

    Raises:
        TypeError: It is no integer.
    """
    if steps is not None:
        _check_positive("steps", steps)


def _check_positive(name: str, value: object) -> None:
    if not is_int(value):
        raise TypeError(
            f"`{name}` must be an int. Received: {shown(value)}. Pass a number "
            "of steps, such as 100."
        )
    if value <= 0:
        raise ValueError(
            f"Must specify {name} > 0, a positive number of steps. Received: "
            f"{value}. Pass a larger number, or leave it out."
        )
