"""Hooks that stop training if the loss is NaN."""

import logging
from collections.abc import Iterable

import numpy as np

from keras_tpu_estimator.api.hooks.fetches import check_name
from keras_tpu_estimator.api.hooks.session import Session
from keras_tpu_estimator.api.hooks.session_run_hook import (
    LoopHook,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)

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

    allows_run_ahead = True

    def __init__(self, loss_tensor: str = "loss", fail_on_nan_loss: bool = True):
        check_name("loss_tensor", loss_tensor)
        self._name = loss_tensor
        self._fails = fail_on_nan_loss

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
    """A hook that raises if the loss is NaN, without delaying the next run.

    Raises:
        NanLossDuringTrainingError: From `run_is_made`, if it is NaN.
    """

    allows_run_ahead = True

    def run_ends(self, start: int) -> Iterable[int]:
        """Returns no steps, because it accepts any end."""
        del start
        return ()

    def run_is_made(self, session: Session) -> None:
        """Checks the loss."""
        if np.isnan(session.run("loss")):
            step = int(session.run("global_step"))
            raise NanLossDuringTrainingError(_message("loss", step, session))


def _message(name: str, step: int, session: Session) -> str:
    return (
        f"NaN {name} during training. Expected a number at every step. "
        f"Received NaN in the run that ended at step {step}. "
        f"{session.whence_nan()} Lower the learning rate, clip the gradients, "
        "or look for log(0) and 0/0 in the loss: RunConfig(debug_nans=True) "
        "finds the operation."
    )
