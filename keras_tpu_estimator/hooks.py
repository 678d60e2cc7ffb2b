"""Hooks: user code that runs in the training loop.

>>> from keras_tpu_estimator.hooks import StopAtStepHook
>>> hook = StopAtStepHook(last_step=1000)
"""

from keras_tpu_estimator.api.hooks.callback_hook import CallbackHook
from keras_tpu_estimator.api.hooks.checkpoint_saver import (
    CheckpointSaverHook,
    CheckpointSaverListener,
)
from keras_tpu_estimator.api.hooks.hook_callback import as_callback
from keras_tpu_estimator.api.hooks.in_memory_evaluator import (
    InMemoryEvaluatorHook,
)
from keras_tpu_estimator.api.hooks.logging_tensor import FinalOpsHook, LoggingTensorHook
from keras_tpu_estimator.api.hooks.needless_hooks import (
    FeedFnHook,
    GlobalStepWaiterHook,
    make_stop_at_checkpoint_step_hook,
)
from keras_tpu_estimator.api.hooks.profiler import ProfilerHook
from keras_tpu_estimator.api.hooks.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from keras_tpu_estimator.api.hooks.stopping import (
    NanLossDuringTrainingError,
    NanTensorHook,
    StopAtStepHook,
)
from keras_tpu_estimator.api.hooks.summary_saver import (
    StepCounterHook,
    SummarySaverHook,
)
from keras_tpu_estimator.api.hooks.timer import SecondOrStepTimer

__all__ = [
    "CallbackHook",
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "FeedFnHook",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "InMemoryEvaluatorHook",
    "LoggingTensorHook",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "ProfilerHook",
    "SecondOrStepTimer",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
    "as_callback",
    "make_stop_at_checkpoint_step_hook",
]
