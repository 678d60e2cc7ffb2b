"""Where the lines of this package's logger go."""

import logging

_OWN = "keras_tpu_estimator"
_TENSORFLOW = "tensorflow"


def follow_tensorflow() -> None:
    """Logs to where TensorFlow does, if a program has asked that to tell more.

    Programs of TensorFlow 1 call `tf.logging.set_verbosity(tf.logging.INFO)`,
    and expect the loss to be logged then. Levels that were set for this
    package's logger count.
    """
    own, other = logging.getLogger(_OWN), logging.getLogger(_TENSORFLOW)
    if own.level == logging.NOTSET and 0 < other.level <= logging.INFO:
        own.parent = other
