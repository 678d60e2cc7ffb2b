"""Files that grow while others read them.

Objects of a store do not grow: a file is written on this machine, and is copied
there as a whole, in the background and at the end of each call.
"""

import contextlib
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from keras_tpu_estimator.ground.storage import paths, transfers
from keras_tpu_estimator.ground.storage.copies import Copy
from keras_tpu_estimator.ground.storage.urls import is_url

# The least time from the end of one upload to the next, in seconds and in
# times of how long it took.
_LEAST_SECS = 10.0
_LEAST_TIMES = 10.0

_logger = logging.getLogger("keras_tpu_estimator")
# Numbers what is written to all files, in order.
_WRITES = itertools.count(1)
# What others do not see yet, or not as it is, and the number of the last write.
_UNSHOWN: "dict[_Uploaded, int]" = {}
# Of what could not be written, the write that somebody was told of.
_TOLD: "weakref.WeakKeyDictionary[object, int]" = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


class Flushable(Protocol):
    """What keeps something back for a while that was written to a file."""

    def flush(self) -> None:
        """Writes it."""


_FLUSHED_AT_END: "weakref.WeakKeyDictionary[Flushable, int]" = (
    weakref.WeakKeyDictionary()
)


class GrowingFile:
    """A file on this machine, which others see grow."""

    def __init__(self, path: str):
        self.path = path

    def changed(self) -> None:
        """Tells that there is more in it."""

    def show(self) -> None:
        """Waits until others see all of it."""


class _Uploaded(GrowingFile):
    """A file that is copied to a store as it grows.

    Args:
        resumes: Whether it begins with what is there.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        url: str,
        resumes: bool,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._copy = Copy(os.path.basename(url))
        super().__init__(self._copy.path)
        self._url = url
        self._clock = clock
        self._not_before = clock()
        self._changes = 0
        self._uploading = threading.Lock()
        self._thread: threading.Thread | None = None
        if resumes and paths.is_file(url):
            transfers.fetch(url, self.path)

    def changed(self) -> None:
        """Begins to copy it, unless that was done just now."""
        with _LOCK:
            self._changes += 1
            _UNSHOWN[self] = next(_WRITES)
        is_busy = self._thread is not None and self._thread.is_alive()
        if is_busy or self._clock() < self._not_before:
            return
        thread = threading.Thread(target=self._try_upload, name="file-uploader")
        try:
            thread.start()
        except RuntimeError:  # When Python exits, `show` has to do it.
            return
        self._thread = thread

    def show(self) -> None:
        """Waits until all of it is in the store.

        Raises:
            Exception: It could not be copied.
        """
        if self._thread is not None:
            self._thread.join()
        if self in _UNSHOWN:
            self._upload()

    def _try_upload(self) -> None:
        try:
            self._upload()
        except Exception:
            _logger.warning(
                "%s could not be written. It is tried again.",
                self._url,
                exc_info=True,
            )

    def _upload(self) -> None:
        began = self._clock()
        try:
            with self._uploading, open(self.path, "rb") as file:
                changes = self._changes
                transfers.put_bytes(file.read(), self._url)
        finally:
            now = self._clock()
            least = max(_LEAST_SECS, _LEAST_TIMES * (now - began))
            self._not_before = now + least
        with _LOCK:
            if self._changes == changes:
                _UNSHOWN.pop(self, None)


def growing(path: str, resumes: bool = False) -> GrowingFile:
    """A file to write at its end.

    Args:
        path: A path or URL.
        resumes: Whether a file at a URL goes on; a local one does anyway, if
            it is opened so. Defaults to `False`.

    Returns:
        Where to write, and whom to tell of it.

    Example:

    >>> growing("/tmp/metrics.jsonl").path
    '/tmp/metrics.jsonl'
    """
    return _Uploaded(path, resumes) if is_url(path) else GrowingFile(path)


def flush_at_end(writer: Flushable) -> None:
    """Has `show_all` flush a writer for as long as there is one.

    Args:
        writer: What keeps something back that was written just now.

    Example:

    >>> import io
    >>> flush_at_end(io.BytesIO())
    """
    with _LOCK:
        _FLUSHED_AT_END[writer] = next(_WRITES)


def show_all(since: int = 0) -> None:
    """Waits until others see all that this process has written.

    Args:
        since: Only what was written from this number on is raised an error
            for. Whoever wrote the rest is not here to be told: a warning is
            logged, once. Defaults to 0, for all.

    Raises:
        Exception: A file could not be written or copied. It is tried again
            next time.

    Example:

    >>> show_all()
    """
    with _LOCK:
        writers = list(_FLUSHED_AT_END.items())
    errors = _errors_of(((w, n, w.flush) for w, n in writers), since)
    with _LOCK:
        unshown = list(_UNSHOWN.items())
    errors += _errors_of(((f, n, f.show) for f, n in unshown), since)
    if errors:
        raise errors[0]


def _errors_of(
    calls: Iterable[tuple[object, int, Callable[[], None]]], since: int
) -> list[Exception]:
    """What calls raise, each of which is made, if they are about new things.

    Args:
        calls: What is written, the number of what was written to it last, and
            what writes it.
        since: As in `show_all`.
    """
    errors: list[Exception] = []
    for written, number, call in calls:
        try:
            call()
        except Exception as error:
            if number >= since:
                errors.append(error)
            elif _TOLD.get(written) != number:
                _logger.warning(
                    "What was written earlier is not in its file yet, and is "
                    "tried again: %s",
                    error,
                )
            _TOLD[written] = number
    return errors


@contextlib.contextmanager
def shown_at_end() -> Iterator[None]:
    """Has `show_all` called at the end of a `with` block.

    Raises:
        Exception: As `show_all`, for what was written in the block, unless
            that has raised another one.

    Example:

    >>> with shown_at_end():
    ...     growing("/tmp/metrics.jsonl").changed()
    """
    since = next(_WRITES)
    try:
        yield
    except BaseException:
        try:
            show_all(since)
        except Exception:
            _logger.exception("Not all event files could be written.")
        raise
    show_all(since)
