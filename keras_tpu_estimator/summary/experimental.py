"""The default step of summaries, as in `tf.summary.experimental`."""

from keras_tpu_estimator.files.summary.recording import get_step, set_step

__all__ = ["get_step", "set_step"]
