"""What `tf.estimator.experimental` had, under its names."""

from keras_tpu_estimator.hooks.in_memory_evaluator import InMemoryEvaluatorHook
from keras_tpu_estimator.hooks.stop_at_checkpoint_step import (
    make_stop_at_checkpoint_step_hook,
)

__all__ = [
    "InMemoryEvaluatorHook",
    "make_stop_at_checkpoint_step_hook",
]
