"""Hooks that stop training: at a step, and if the loss is NaN."""

import logging
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_tpu_estimator.api.hooks.session import Session, check_name
from keras_tpu_estimator.api.hooks.session_run_hook import (
    EveryRun,
    Hook,
    LoopHook,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)


class StopAtStepHook(SessionRunHook):
    """A hook that stops training after a number of steps, or at a step.

    Passed to `train`, it stops at exactly that step: the last loop is
    shortened. In the `training_hooks` of a spec, it stops at the end of the
    loop in which the step is reached, because loops of a chosen length are
    planned before `model_fn` is called. If the step has already been reached,
    one more step is made. The counterpart of
    `tf.compat.v1.train.StopAtStepHook`.

    Args:
        num_steps: Number of steps, counted from the start of each `train`; a
            fraction is rounded up. Defaults to `None`.
        last_step: The global step to stop at, also rounded up. Defaults to `None`.

    Raises:
        ValueError: Not exactly one of the two is given.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> hook = kte.hooks.StopAtStepHook(last_step=1000)
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None):
        limits = [limit for limit in (num_steps, last_step) if limit is not None]
        if len(limits) != 1:
            raise ValueError(
                "Exactly one of `num_steps` and `last_step` must be given. "
                f"Received: num_steps={num_steps}, last_step={last_step}. "
                "`num_steps` counts from where training starts."
            )
        (self._steps,) = limits
        self._counts_anew = last_step is None

    def stop_from(self, start: int) -> int:
        """Returns the step to stop at, for a training that starts at a step."""
        stop = start + self._steps if self._counts_anew else self._steps
        return math.ceil(stop)

    def due_steps(self, start: int) -> Iterable[int]:
        """Returns the step to stop at, which may have been reached."""
        return (max(start + 1, self.stop_from(start)),)

    def after_create_session(self, session: Session, coord: Any) -> None:
        """Starts to count."""
        del coord
        self._stop = self.stop_from(session.results.step)

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Stops if the step has been reached."""
        del run_values
        if run_context.session.results.step >= self._stop:
            run_context.request_stop()


def steps_until_stop(
    hooks: Iterable[Hook], start: int, steps: int | None
) -> int | None:
    """Returns the number of steps, at least 1, from the global step `start` until a
    `StopAtStepHook` stops training, at most `steps`; `None` stands for no end.
    """
    ends = [
        max(1, hook.stop_from(start) - start)
        for hook in hooks
        if isinstance(hook, StopAtStepHook)
    ]
    return min(ends if steps is None else [*ends, steps], default=None)


_logger = logging.getLogger("keras_tpu_estimator")


class NanLossDuringTrainingError(RuntimeError):
    """An error that is raised if the loss is NaN."""

    def __str__(self) -> str:
        return self.args[0] if self.args else "NaN loss during training."


class NanTensorHook(SessionRunHook):
    """A hook that raises or stops if a value is NaN after a run.

    Training always checks the loss, and writes no checkpoint after a NaN. The
    counterpart of `tf.compat.v1.train.NanTensorHook`.

    Args:
        loss_tensor: The name of the value, an array of any shape. Defaults to
            `"loss"`.
        fail_on_nan_loss: Whether to raise an error; otherwise logs a warning
            and stops. Defaults to `True`.

    Raises:
        TypeError: `loss_tensor` is not a name.
        NanLossDuringTrainingError: From `after_run`, if the value is NaN.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> hook = kte.hooks.NanTensorHook("dense/kernel", fail_on_nan_loss=False)
    """

    def __init__(self, loss_tensor: str = "loss", fail_on_nan_loss: bool = True):
        check_name("loss_tensor", loss_tensor)
        self._name = loss_tensor
        self._fails = fail_on_nan_loss

    def due_steps(self, start: int) -> Iterable[int]:
        """Returns all runs, of which it reads values only by the session."""
        return EveryRun(start)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Requests the value."""
        del run_context
        return SessionRunArgs({"value": self._name, "step": "global_step"})

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Checks the value."""
        results, session = run_values.results, run_context.session
        if not np.isnan(results["value"]).any():
            return
        message = _message(self._name, int(results["step"]), session)
        if self._fails:
            raise NanLossDuringTrainingError(message)
        _logger.warning(message)
        run_context.request_stop()


class NanLossHook(LoopHook):
    """A hook whose `run_completed` raises `NanLossDuringTrainingError` if the loss is
    NaN, without delaying the next run.
    """

    def run_completed(self, session: Session) -> None:
        """Checks the loss."""
        results = session.results
        if np.isnan(results.loss):
            raise NanLossDuringTrainingError(_message("loss", results.step, session))


def _message(name: str, step: int, session: Session) -> str:
    return (
        f"NaN {name} during training. Expected a number at every step. "
        f"Received NaN in the run that ended at step {step}. "
        f"{session.explain_nan()} Lower the learning rate, clip the gradients, "
        "or look for log(0) and 0/0 in the loss: RunConfig(debug_nans=True) "
        "finds the operation."
    )
