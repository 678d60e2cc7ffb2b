"""Private attributes of TensorFlow's hooks, timers and savers."""

from keras_tpu_estimator.base.upstream.private_names import PrivateAttribute

NUM_STEPS = PrivateAttribute(
    "holds the number of steps to stop after",
    "tensorflow.compat.v1.train.StopAtStepHook._num_steps",
)
LAST_STEP = PrivateAttribute(
    "holds the step to stop at", "tensorflow.compat.v1.train.StopAtStepHook._last_step"
)
CHECKPOINT_DIR = PrivateAttribute(
    "holds the directory of a saver hook",
    "tensorflow.compat.v1.train.CheckpointSaverHook._checkpoint_dir",
)
SAVE_PATH = PrivateAttribute(
    "holds the prefix of a hook's checkpoints",
    "tensorflow.compat.v1.train.CheckpointSaverHook._save_path",
)
LISTENERS = PrivateAttribute(
    "holds the listeners of a saver hook",
    "tensorflow.compat.v1.train.CheckpointSaverHook._listeners",
)
SAVER = PrivateAttribute(
    "holds the saver of a hook", "tensorflow.compat.v1.train.CheckpointSaverHook._saver"
)
TIMER = PrivateAttribute(
    "holds the timer of a hook", "tensorflow.compat.v1.train.CheckpointSaverHook._timer"
)
OUTPUT_FILE = PrivateAttribute(
    "holds the path of a hook's profiles",
    "tensorflow.compat.v1.train.ProfilerHook._output_file",
)
TIMER_OF_PROFILER = PrivateAttribute(
    "holds the timer of a hook", "tensorflow.compat.v1.train.ProfilerHook._timer"
)
EVERY_SECS = PrivateAttribute(
    "holds the interval of a timer in seconds",
    "tensorflow.compat.v1.train.SecondOrStepTimer._every_secs",
)
EVERY_STEPS = PrivateAttribute(
    "holds the interval of a timer in steps",
    "tensorflow.compat.v1.train.SecondOrStepTimer._every_steps",
)
FINAL_OPS = PrivateAttribute(
    "holds the fetches of a hook at the end",
    "tensorflow.compat.v1.train.FinalOpsHook._final_ops",
)
LOGS_AT_END = PrivateAttribute(
    "is true if a hook logs at the end",
    "tensorflow.compat.v1.train.LoggingTensorHook._log_at_end",
)
LOGGED_TENSORS = PrivateAttribute(
    "holds the tensors that a hook logs",
    "tensorflow.compat.v1.train.LoggingTensorHook._current_tensors",
)
MAX_TO_KEEP = PrivateAttribute(
    "holds the number of checkpoints that a saver keeps",
    "tensorflow.compat.v1.train.Saver._max_to_keep",
)
KEEP_EVERY_HOURS = PrivateAttribute(
    "holds the hours after which a saver keeps a checkpoint forever",
    "tensorflow.compat.v1.train.Saver._keep_checkpoint_every_n_hours",
)
