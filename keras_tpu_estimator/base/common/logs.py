"""Log messages of this package: their destination, and warnings logged once."""

import contextlib
import copy
import functools
import logging
import sys
from collections.abc import Iterator

_OWN = "keras_tpu_estimator"
_TENSORFLOW = "tensorflow"
# The file descriptors of `sys.stdout` and `sys.stderr`.
_TERMINAL = (1, 2)


def follow_tensorflow() -> None:
    """Logs at TensorFlow's level if it is INFO or lower and this package has none."""
    logger, tensorflow_logger = logging.getLogger(_OWN), logging.getLogger(_TENSORFLOW)
    if (
        logger.level == logging.NOTSET
        and 0 < tensorflow_logger.level <= logging.INFO
        and not _is_interactive_default(tensorflow_logger)
    ):
        join_tensorflow()


@contextlib.contextmanager
def without_interactive_default() -> Iterator[None]:
    """Prevents INFO messages of TensorFlow that the user has not requested."""
    logger = logging.getLogger(_TENSORFLOW)
    level = logger.level
    if _is_interactive_default(logger):
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _is_interactive_default(logger: logging.Logger) -> bool:
    """Returns whether TensorFlow itself may have set its logger's level.

    It does so in notebooks and interactive sessions, together with a handler, unless
    the root logger has handlers.
    """
    return (
        (hasattr(sys, "ps1") or bool(sys.flags.interactive))
        and logger.level == logging.INFO
        and bool(logger.handlers)
    )


def join_tensorflow() -> None:
    """Logs this package's messages through TensorFlow's logger from now on.

    The terminal shows each message once: TensorFlow shows its messages, and also passes
    them to the root logger's handlers, which are those of `absl.app.run` or
    `logging.basicConfig`.
    """
    logger, tensorflow_logger = logging.getLogger(_OWN), logging.getLogger(_TENSORFLOW)
    logger.parent = tensorflow_logger  # Its level applies.
    logger.propagate = False
    if not any(isinstance(handler, _AsTensorFlow) for handler in logger.handlers):
        logger.addHandler(_AsTensorFlow())
    if absl := sys.modules.get("absl.logging"):
        absl.get_absl_handler().addFilter(_is_absls)
    for handler in filter(_is_of_terminal, tensorflow_logger.handlers):
        handler.addFilter(_is_tensorflows)


class _AsTensorFlow(logging.Handler):
    """Logs records under TensorFlow's name."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Passes a record to TensorFlow's handlers, which have locks."""
        record = copy.copy(record)
        record.name = _TENSORFLOW
        logging.getLogger(_TENSORFLOW).handle(record)
        return True


def _is_absls(record: logging.LogRecord) -> bool:
    """Returns whether absl's handler, not TensorFlow's, shows a message."""
    if record.name != _TENSORFLOW:
        return True
    # With `--log_dir` it writes all messages to a file.
    handler = sys.modules["absl.logging"].get_absl_handler().python_handler
    return not (_is_of_terminal(handler) and _shows(_TENSORFLOW, record))


def _is_tensorflows(record: logging.LogRecord) -> bool:
    """Returns whether TensorFlow's handler, not the user's, shows a message."""
    return not _shows(None, record)


def _shows(logger: str | None, record: logging.LogRecord) -> bool:
    """Returns whether a logger's own handlers show a message on the terminal."""
    return any(
        _is_of_terminal(handler) and record.levelno >= handler.level
        for handler in logging.getLogger(logger).handlers
    )


def _is_of_terminal(handler: logging.Handler) -> bool:
    """Returns whether a handler writes to the terminal; absl's does not count."""
    if not isinstance(handler, logging.StreamHandler):
        return False
    if handler.stream in (sys.stdout, sys.stderr):
        return True
    try:
        return handler.stream.fileno() in _TERMINAL
    except (
        AttributeError,
        OSError,
        ValueError,
    ):  # Users' handlers may have any `stream`.
        return False


_logger = logging.getLogger("keras_tpu_estimator")


@functools.cache
def warn_once(message: str) -> None:
    """Logs a warning, unless this process has logged the same one."""
    _logger.warning("%s", message)
