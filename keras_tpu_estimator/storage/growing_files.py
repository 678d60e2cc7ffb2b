"""Files that grow while others read them.

Objects of a store do not grow: a file is written on this machine, and is copied
there as a whole, in the background and at the end of each call.
"""

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Protocol

from keras_tpu_estimator.storage import paths
from keras_tpu_estimator.storage import transfers
from keras_tpu_estimator.storage.copies import Copy
from keras_tpu_estimator.storage.urls import is_url

# The least time from the end of one upload to the next, in seconds and in
# times of how long it took.
_LEAST_SECS = 10.0
_LEAST_TIMES = 10.0

_logger = logging.getLogger("keras_tpu_estimator")
# What others do not see yet, or not as it is.
_UNSHOWN: "set[_Uploaded]" = set()
_LOCK = threading.Lock()


class Flushable(Protocol):
    """What keeps something back for a while that was written to a file."""

    def flush(self) -> None:
        """Writes it."""


_FLUSHED_AT_END: "weakref.WeakSet[Flushable]" = weakref.WeakSet()


class GrowingFile:
    """A file on this machine, which others see grow.

    Args:
        path: Its path.

    Attributes:
        path: Where to write.
    """

    def __init__(self, path: str):
        self.path = path

    def changed(self) -> None:
        """Tells that there is more in it."""

    def show(self) -> None:
        """Waits until others see all of it."""


class _Uploaded(GrowingFile):
    """A file that is copied to a store as it grows.

    Args:
        url: Where to.
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
            _UNSHOWN.add(self)
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
                _UNSHOWN.discard(self)


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
        writer: What keeps something back.

    Example:

    >>> import io
    >>> flush_at_end(io.BytesIO())
    """
    with _LOCK:
        _FLUSHED_AT_END.add(writer)


def show_all() -> None:
    """Waits until others see all that this process has written.

    Raises:
        Exception: A file could not be written or copied. It is tried again
            next time.

    Example:

    >>> show_all()
    """
    with _LOCK:
        writers = list(_FLUSHED_AT_END)
    errors = _errors_of(writer.flush for writer in writers)
    with _LOCK:
        unshown = list(_UNSHOWN)
    errors += _errors_of(file.show for file in unshown)
    if errors:
        raise errors[0]


def _errors_of(calls: Iterable[Callable[[], None]]) -> list[Exception]:
    """What calls raise, each of which is made."""
    errors: list[Exception] = []
    for call in calls:
        try:
            call()
        except Exception as error:
            errors.append(error)
    return errors


@contextlib.contextmanager
def shown_at_end() -> Iterator[None]:
    """Has `show_all` called at the end of a `with` block.

    Raises:
        Exception: As `show_all`, unless the block has raised another one.

    Example:

    >>> with shown_at_end():
    ...     growing("/tmp/metrics.jsonl").changed()
    """
    try:
        yield
    except BaseException:
        try:
            show_all()
        except Exception:
            _logger.exception("Not all event files could be written.")
        raise
    show_all()
