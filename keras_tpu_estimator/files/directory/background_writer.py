"""Writing in the background, one checkpoint at a time."""

import os
import threading
from collections.abc import Callable

from keras_tpu_estimator.ground.base.types import PathLike

# The threads that write into each directory. All of them have started.
_IN_FLIGHT: dict[str, set[threading.Thread]] = {}
_LOCK = threading.Lock()


class Writer:
    """Runs what writes a checkpoint on a thread.

    An error there is raised as itself, where the writer is used next. A
    process that ends in the meantime waits for the thread.

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
        """Whether something is being written."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, directory: PathLike, write: Callable[[], object]) -> None:
        """Begins to write, once what is being written is there.

        Args:
            directory: Where to, for `wait_for`.
            write: Writes.

        Raises:
            Exception: The one before failed.
            RuntimeError: There can be no more threads.
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
        """Waits until what is being written is there.

        Raises:
            Exception: It failed.
        """
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
    """Waits for what this process is writing into a directory.

    Whether that succeeds is for those to know who write.

    Args:
        directory: The directory.

    Example:

    >>> wait_for("/tmp")
    """
    path = os.path.realpath(os.fsdecode(directory))
    with _LOCK:
        threads = [*_IN_FLIGHT.get(path, ())]
    for thread in threads:
        thread.join()
