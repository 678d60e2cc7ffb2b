"""Stopping when the loss is no number any more."""

import numpy as np

from keras_tpu_estimator.hooks.session_run_hook import SessionRunArgs
from keras_tpu_estimator.hooks.session_run_hook import SessionRunContext
from keras_tpu_estimator.hooks.session_run_hook import SessionRunHook
from keras_tpu_estimator.hooks.session_run_hook import SessionRunValues


class NanLossDuringTrainingError(RuntimeError):
    """The loss became NaN."""

    def __str__(self) -> str:
        return self.args[0] if self.args else "NaN loss during training."


class NanTensorHook(SessionRunHook):
    """Raises if the loss of a run is NaN, before a checkpoint is written.

    Raises:
        NanLossDuringTrainingError: From `after_run`.
    """

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Asks for the loss."""
        del run_context
        return SessionRunArgs({"loss": "loss", "step": "global_step"})

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Looks at it."""
        del run_context
        if np.isnan(run_values.results["loss"]):
            raise NanLossDuringTrainingError(
                "NaN loss during training. Expected a number at every step. "
                "Received NaN in the run that ended at step "
                f"{int(run_values.results['step'])}: lower the learning rate, "
                "clip the gradients, or look for log(0) and 0/0 in the loss."
            )
