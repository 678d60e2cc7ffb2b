"""Writing of checkpoints in the background, one at a time."""

import os
import threading
from collections.abc import Callable

from keras_tpu_estimator.base.common.types import PathLike

# The running threads that write into each directory.
_IN_FLIGHT: dict[str, set[threading.Thread]] = {}
_LOCK = threading.Lock()


class Writer:
    """Writes checkpoints on a thread.

    The next use of the writer raises an error of the thread. A process waits
    for the thread before it exits.

    Example:

    >>> written = []
    >>> writer = Writer()
    >>> writer.start("/tmp", lambda: written.append("model.ckpt-20"))
    >>> writer.wait()
    >>> written
    ['model.ckpt-20']
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, directory: PathLike, write: Callable[[], object]) -> None:
        """Begins to write after the previous checkpoint is complete.

        Args:
            directory: The target directory, for `wait_for`.

        Raises:
            Exception: The previous write failed.
            RuntimeError: No thread could be started.
        """
        self.wait()
        path = os.path.realpath(os.fsdecode(directory))
        thread = threading.Thread(
            target=self._run,
            args=(path, write),
            name="checkpoint-writer",
        )
        with _LOCK:
            # A thread that cannot start is not registered.
            thread.start()
            _IN_FLIGHT.setdefault(path, set()).add(thread)
        self._thread = thread

    def wait(self) -> None:
        """Waits for the current write, and raises its error if it failed."""
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, directory: str, write: Callable[[], object]) -> None:
        try:
            write()
        except BaseException as error:
            self._error = error
        finally:
            with _LOCK:
                threads = _IN_FLIGHT[directory]
                threads.remove(threading.current_thread())
                if not threads:
                    del _IN_FLIGHT[directory]


def wait_for(directory: PathLike) -> None:
    """Waits until this process has finished writing into a directory.

    Errors are raised by the writers, not here.

    Example:

    >>> wait_for("/tmp")
    """
    path = os.path.realpath(os.fsdecode(directory))
    with _LOCK:
        threads = [*_IN_FLIGHT.get(path, ())]
    for thread in threads:
        thread.join()
