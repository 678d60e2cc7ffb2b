"""Warnings that are logged once in a process."""

import functools
import logging

_logger = logging.getLogger("keras_tpu_estimator")


@functools.cache
def warn_once(message: str) -> None:
    """Logs a warning, unless this process has logged the same one.

    Args:
        message: The warning.

    Example:

    >>> warn_once("RunConfig.master has no effect.")
    >>> warn_once("RunConfig.master has no effect.")
    """
    _logger.warning("%s", message)
