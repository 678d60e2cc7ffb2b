"""One event file of TensorBoard: records in the order they are written."""

import io
import itertools
import os
import socket
import time
import weakref

from keras_tpu_estimator.storage import paths
from keras_tpu_estimator.storage.growing_files import GrowingFile
from keras_tpu_estimator.storage.growing_files import growing
from keras_tpu_estimator.summary.event_records import framed

# TensorBoard expects this in the first event of a file.
_FILE_VERSION = "brain.Event:2"

_numbers = itertools.count()


class EventFile:
    """A new event file, open for writing until `close()`.

    Args:
        logdir: The directory of the file, made if need be, or its URL.
        suffix: The end of its name. Defaults to none.

    Attributes:
        waiting: Serialized events that the next flush writes.
        flushed_at: `time.monotonic()` of the last flush, in seconds.

    Example:

    >>> import tempfile
    >>> file = EventFile(tempfile.mkdtemp())
    >>> file.waiting.append(b"an event")
    >>> file.close()
    """

    def __init__(self, logdir: str, suffix: str = "") -> None:
        from tensorboard.compat.proto import event_pb2

        paths.make_directory(logdir)
        now = time.time()
        name = (
            f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}."
            f"{os.getpid()}.{next(_numbers)}{suffix}"
        )
        self._file = growing(os.path.join(logdir, name))
        # `EventFileWriter` of TensorBoard would open the file by TensorFlow,
        # wherever that is installed.
        self._stream = open(self._file.path, "xb")
        self.waiting: list[bytes] = []
        # Closes also a forgotten file, at the latest when Python exits.
        self.close = weakref.finalize(
            self, _close, self._stream, self.waiting, self._file
        )
        first = event_pb2.Event(wall_time=now, file_version=_FILE_VERSION)
        self._stream.write(framed([first.SerializeToString()]))
        self.flush()

    def exists(self) -> bool:
        """Whether the file is still in its directory."""
        return self._file.exists()

    def flush(self) -> None:
        """Hands all that was written to the operating system."""
        _flush(self._stream, self.waiting)
        self._file.changed()
        self.flushed_at = time.monotonic()


def _flush(stream: io.BufferedWriter, waiting: list[bytes]) -> None:
    records = framed(waiting)
    waiting.clear()
    stream.write(records)
    stream.flush()


def _close(
    stream: io.BufferedWriter, waiting: list[bytes], file: GrowingFile
) -> None:
    with stream:
        if waiting:
            _flush(stream, waiting)
            file.changed()
    file.show()
