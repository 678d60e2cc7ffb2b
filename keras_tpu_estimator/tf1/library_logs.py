"""A filter for INFO lines of JAX and of TensorFlow's internals.

`tf.app.run` shows the INFO lines of all loggers. Lines of libraries that TensorFlow 1
did not have do not concern the script.
"""

import logging
import os
import sys


def silence() -> None:
    """Hides these lines from now on, unless the script has set JAX's level."""
    jax = logging.getLogger("jax")
    if jax.level == logging.NOTSET:
        jax.setLevel(logging.WARNING)
    logging.getLogger("absl").addFilter(_is_for_users)


def _is_for_users(record: logging.LogRecord) -> bool:
    """Returns whether a line is a warning, or was logged outside of TensorFlow."""
    folder = os.path.dirname(sys.modules["tensorflow"].__file__ or "")
    is_internal = record.pathname.startswith(os.path.join(folder, ""))
    return record.levelno >= logging.WARNING or not is_internal
