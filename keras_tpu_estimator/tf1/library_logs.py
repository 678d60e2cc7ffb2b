"""INFO lines of JAX and of TensorFlow's internals.

`tf.app.run` shows the INFO lines of all loggers. Those of libraries that
TensorFlow 1 did not have say nothing about the program.
"""

import logging
import os
import sys


def silence() -> None:
    """Leaves them out from now on, unless the program chose JAX's level."""
    jax = logging.getLogger("jax")
    if jax.level == logging.NOTSET:
        jax.setLevel(logging.WARNING)
    logging.getLogger("absl").addFilter(_is_for_users)


def _is_for_users(record: logging.LogRecord) -> bool:
    """Whether a line is a warning, or was logged outside of TensorFlow."""
    folder = os.path.dirname(sys.modules["tensorflow"].__file__ or "")
    is_internal = record.pathname.startswith(os.path.join(folder, ""))
    return record.levelno >= logging.WARNING or not is_internal
