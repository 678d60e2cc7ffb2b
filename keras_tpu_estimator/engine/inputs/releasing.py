"""Letting go of what TensorFlow takes its time to let go of."""

import atexit
import functools
import threading
import time
from collections.abc import Callable

# A thread that comes back from TensorFlow while Python ends is an abort, so the
# end waits; what takes longer is stuck, and does not come back so soon.
_PATIENCE_SECS = 1.0
_threads: set[threading.Thread] = set()


def release(function: Callable[[], object]) -> None:
    """Calls a function without waiting for it.

    Args:
        function: Lets go of something.

    Example:

    >>> items = [1, 2, 3]
    >>> release(items.clear)
    >>> wait_for_releases()
    >>> items
    []
    """
    thread = threading.Thread(
        target=lambda: _run(function), name="deletion", daemon=True
    )
    _wait_at_exit()
    _threads.add(thread)
    thread.start()


def wait_for_releases() -> None:
    """Waits a second at most for all that is being let go of."""
    until = time.monotonic() + _PATIENCE_SECS
    for thread in list(_threads):
        thread.join(max(0.0, until - time.monotonic()))


def _run(function: Callable[[], object]) -> None:
    try:
        function()
    finally:
        _threads.discard(threading.current_thread())


@functools.cache
def _wait_at_exit() -> None:
    atexit.register(wait_for_releases)
