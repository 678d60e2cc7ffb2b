"""One event file of TensorBoard: records in the order they are written."""

import itertools
import os
import socket
import time

from keras_tpu_estimator.files.summary.event_records import framed
from keras_tpu_estimator.ground.storage import paths
from keras_tpu_estimator.ground.storage.growing_files import growing

# TensorBoard expects this in the first event of a file.
_FILE_VERSION = "brain.Event:2"

_numbers = itertools.count()


class EventFile:
    """A new event file, which is open only while it is written to.

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
        open(self._file.path, "xb").close()
        self._size = 0
        first = event_pb2.Event(wall_time=now, file_version=_FILE_VERSION)
        self.waiting = [first.SerializeToString()]
        self.flush()

    def flush(self) -> None:
        """Hands all that waits to the operating system.

        Raises:
            FileNotFoundError: Someone has deleted the file.
            OSError: It could not be written; the events go on waiting.
        """
        records = framed(self.waiting)
        # Not for appending: that would make a deleted file anew, without its
        # first event, and go on behind what a full disk has cut off.
        # Without a buffer, which costs more than all else here.
        with open(self._file.path, "rb+", buffering=0) as stream:
            stream.seek(self._size)
            written = 0
            while written < len(records):
                written += stream.write(records[written:])
        self._size += len(records)
        self.waiting.clear()
        self._file.changed()
        self.flushed_at = time.monotonic()

    def close(self) -> None:
        """Flushes, unless someone has deleted it, and lets others see it."""
        if self.waiting:
            try:
                self.flush()
            except FileNotFoundError:
                return
        self._file.show()
