"""Where the lines of this package's logger go."""

import contextlib
import copy
import logging
import sys
from collections.abc import Iterator

_OWN = "keras_tpu_estimator"
_TENSORFLOW = "tensorflow"
# What `sys.stdout` and `sys.stderr` are to the operating system.
_TERMINAL = (1, 2)


def follow_tensorflow() -> None:
    """Logs as TensorFlow does, if the program has asked it for more.

    TensorFlow 1 programs call `tf.logging.set_verbosity(tf.logging.INFO)`, and
    expect the loss to be logged then. A level of this package's own logger
    comes first.
    """
    own, other = logging.getLogger(_OWN), logging.getLogger(_TENSORFLOW)
    if (
        own.level == logging.NOTSET
        and 0 < other.level <= logging.INFO
        and not _is_interactive_default(other)
    ):
        join_tensorflow()


@contextlib.contextmanager
def without_interactive_default() -> Iterator[None]:
    """Keeps TensorFlow from logging INFO lines that nobody asked for."""
    logger = logging.getLogger(_TENSORFLOW)
    level = logger.level
    if _is_interactive_default(logger):
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _is_interactive_default(logger: logging.Logger) -> bool:
    """Whether TensorFlow itself may have set its logger's level.

    It does so in notebooks and interactive sessions, together with a handler,
    unless the root logger has handlers.
    """
    return (
        (hasattr(sys, "ps1") or bool(sys.flags.interactive))
        and logger.level == logging.INFO
        and bool(logger.handlers)
    )


def join_tensorflow() -> None:
    """Makes the lines of this package lines of TensorFlow, from now on.

    The terminal shows each of these once. By itself TensorFlow shows what it
    logs, and leaves it to the root logger as well: to the handler of absl,
    which `app.run` puts there, or to that of `logging.basicConfig`.
    """
    own, other = logging.getLogger(_OWN), logging.getLogger(_TENSORFLOW)
    own.parent = other  # Whose level counts.
    own.propagate = False
    if not any(isinstance(each, _AsTensorFlow) for each in own.handlers):
        own.addHandler(_AsTensorFlow())
    if absl := sys.modules.get("absl.logging"):
        absl.get_absl_handler().addFilter(_is_absls)
    for handler in filter(_is_of_terminal, other.handlers):
        handler.addFilter(_is_tensorflows)


class _AsTensorFlow(logging.Handler):
    """Logs what it gets as TensorFlow's."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Hands it to the handlers of TensorFlow, under its name.

        Without a lock: those that it hands lines to have their own.
        """
        record = copy.copy(record)
        record.name = _TENSORFLOW
        logging.getLogger(_TENSORFLOW).handle(record)
        return True


def _is_absls(record: logging.LogRecord) -> bool:
    """Whether absl's handler shows a line, rather than TensorFlow's."""
    if record.name != _TENSORFLOW:
        return True
    # With `--log_dir` it writes into a file, which gets all of them.
    handler = sys.modules["absl.logging"].get_absl_handler().python_handler
    return not (_is_of_terminal(handler) and _shows(_TENSORFLOW, record))


def _is_tensorflows(record: logging.LogRecord) -> bool:
    """Whether TensorFlow's handler shows a line, rather than the user's."""
    return not _shows(None, record)


def _shows(logger: str | None, record: logging.LogRecord) -> bool:
    """Whether a logger's own handlers show a line on the terminal."""
    return any(
        _is_of_terminal(handler) and record.levelno >= handler.level
        for handler in logging.getLogger(logger).handlers
    )


def _is_of_terminal(handler: logging.Handler) -> bool:
    """Whether a handler writes where everybody looks; absl's is no such."""
    if not isinstance(handler, logging.StreamHandler):
        return False
    if handler.stream in (sys.stdout, sys.stderr):
        return True
    try:
        return handler.stream.fileno() in _TERMINAL
    except (AttributeError, OSError, ValueError):  # It may be anything.
        return False
