"""Lines that show how long a compilation has taken so far."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

_FIRST_SECS = 10.0


@contextlib.contextmanager
def reported(report: Callable[[str], object], what: str) -> Iterator[None]:
    """Reports how long a `with` block has taken so far.

    The first line comes after ten seconds, and each later one when the time has
    doubled.

    Args:
        report: Takes a line.
        what: The subject of the line.

    Example:

    >>> with reported(print, "Compiling mode 'train'"):
    ...     pass  # It ends before the first line.
    """
    is_over, begun = threading.Event(), time.monotonic()

    def watch() -> None:
        due = _FIRST_SECS
        while not is_over.wait(begun + due - time.monotonic()):
            passed = time.monotonic() - begun
            report(f"{what} has taken {passed:.0f} s so far.")
            due = 2 * passed

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
