"""User code that takes part in the loop."""

from keras_tpu_estimator.hooks.checkpoint_saver import CheckpointSaverListener
from keras_tpu_estimator.hooks.nan_tensor import NanLossDuringTrainingError
from keras_tpu_estimator.hooks.session_run_hook import SessionRunArgs
from keras_tpu_estimator.hooks.session_run_hook import SessionRunContext
from keras_tpu_estimator.hooks.session_run_hook import SessionRunHook
from keras_tpu_estimator.hooks.session_run_hook import SessionRunValues
from keras_tpu_estimator.hooks.timer import SecondOrStepTimer

__all__ = [
    "CheckpointSaverListener",
    "NanLossDuringTrainingError",
    "SecondOrStepTimer",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
]
