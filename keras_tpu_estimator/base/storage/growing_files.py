"""Files that grow while others read them.

Objects in a store cannot grow. Such a file is written locally, and the complete file is
uploaded in the background and at the end of each call.
"""

import collections
import contextlib
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from keras_tpu_estimator.base.storage import paths, transfers
from keras_tpu_estimator.base.storage.paths import is_url
from keras_tpu_estimator.base.storage.transfers import Copy

# The minimum time from the end of one upload to the next, in seconds and as a
# multiple of the upload's duration.
_LEAST_SECS = 10.0
_LEAST_TIMES = 10.0

_logger = logging.getLogger("keras_tpu_estimator")
# The numbers of all writes, in order.
_WRITES = itertools.count(1)
# Files with changes that others do not see yet, and the number of the last write.
_UNSHOWN: "dict[_Uploaded, int]" = {}
# The number of the last write whose failure was reported, by file or writer.
_TOLD: "weakref.WeakKeyDictionary[object, int]" = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()
# Functions that close files whose writers were deleted.
_CLOSED_SOON: "collections.deque[Callable[[], None]]" = collections.deque()
_CLOSING = threading.Lock()


class Flushable(Protocol):
    """An object that buffers writes to a file."""

    def flush(self) -> None:
        """Writes the buffer."""


_FLUSHED_AT_END: "weakref.WeakKeyDictionary[Flushable, int]" = (
    weakref.WeakKeyDictionary()
)


class GrowingFile:
    """A local file that others see grow."""

    def __init__(self, path: str):
        self.path = path

    def changed(self) -> None:
        """Records that the file has more content."""

    def show(self) -> None:
        """Waits until others see the complete content."""


class _Uploaded(GrowingFile):
    """A file that is copied to a store as it grows.

    If it resumes, it begins with the existing content.
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
        """Starts an upload, unless one has just finished."""
        with _LOCK:
            self._changes += 1
            _UNSHOWN[self] = next(_WRITES)
        is_busy = self._thread is not None and self._thread.is_alive()
        if is_busy or self._clock() < self._not_before:
            return
        thread = threading.Thread(target=self._try_upload, name="file-uploader")
        try:
            thread.start()
        except RuntimeError:  # Python is exiting, so `show` must upload the file.
            return
        self._thread = thread

    def show(self) -> None:
        """Waits until the store has the complete content, or raises an error."""
        if self._thread is not None:
            self._thread.join()
        if self in _UNSHOWN:
            self._upload()

    def _try_upload(self) -> None:
        try:
            self._upload()
        except Exception:
            _logger.warning(
                "%s could not be written. The upload is retried.",
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
    """Returns a file at a path or URL for appending.

    Args:
        resumes: Whether a file at a URL continues. A local file continues depending on
            how it is opened.
    """
    return _Uploaded(path, resumes) if is_url(path) else GrowingFile(path)


def flush_at_end(writer: Flushable) -> None:
    """Makes `show_all` flush a writer for as long as the writer exists."""
    with _LOCK:
        _FLUSHED_AT_END[writer] = next(_WRITES)


def close_soon(close: Callable[[], None]) -> None:
    """Calls a function on another thread, or now if Python is exiting.

    For finalizers: they run at any time, also while their thread has a lock of this
    module or uploads the file. The function must not raise errors.
    """
    if not threading.main_thread().is_alive():
        # Python is exiting, and then deletes temporary files.
        close()
        return
    _CLOSED_SOON.append(close)
    with contextlib.suppress(RuntimeError):  # There are too many threads.
        threading.Thread(target=_close_all, name="file-closer").start()


def _close_all() -> None:
    with _CLOSING:
        while _CLOSED_SOON:
            _CLOSED_SOON.popleft()()


def show_all(since: int = 0) -> None:
    """Waits until others see everything that this process has written.

    A file that cannot be written or copied raises an error, and the next call retries.

    Args:
        since: The number of a write. Failures of earlier writes are logged once instead
            of raised, because their caller has already returned.
    """
    _close_all()
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
    """Makes all calls, and returns the errors of writes from number `since` on.

    Each call has the written object, the number of its last write, and a function that
    writes it.
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
                    "An earlier write has not reached its file yet, and is retried: %s",
                    error,
                )
            _TOLD[written] = number
    return errors


@contextlib.contextmanager
def shown_at_end() -> Iterator[None]:
    """Calls `show_all` after a `with` block, whose own error takes precedence."""
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
