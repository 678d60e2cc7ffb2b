"""TensorBoard event files: their records, and their scalars, without TensorFlow."""

import functools
import itertools
import logging
import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import google_crc32c

from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.base.storage.growing_files import growing

_DOUBLE = struct.Struct("<d")
_UINT32 = struct.Struct("<I")
CHECKSUM_SIZE = _UINT32.size
# The mask of TFRecord checksums, for data that contain checksums.
_MASK = 0xA282EAD8
_SIXTY_FOUR_BITS = (1 << 64) - 1


def serialized(wall_time: float, step: int, summary: bytes) -> bytes:
    """Returns a serialized `Event` of a serialized `Summary`; the time is Unix time."""
    # Each field follows its key.
    return b"\x09%b\x10%b\x2a%b%b" % (
        _DOUBLE.pack(wall_time),
        varint(step),
        varint(len(summary)),
        summary,
    )


def varint(number: int) -> bytes:
    """Encodes a 64-bit integer as Protocol Buffers do.

    >>> varint(300)
    b'\\xac\\x02'
    """
    remainder = number & _SIXTY_FOUR_BITS
    groups = []
    while remainder > 0x7F:
        groups.append(remainder & 0x7F | 0x80)
        remainder >>= 7
    groups.append(remainder)
    return bytes(groups)


def framed(events: Iterable[bytes]) -> bytes:
    """Returns serialized events as records of TensorFlow's TFRecord format.

    Each record consists of a length, its checksum, the event, and its checksum.
    """
    return b"".join(
        part
        for event in events
        for part in (_header(len(event)), event, checksum(event))
    )


def checksum(data: bytes) -> bytes:
    """Returns the four bytes of a TFRecord checksum: CRC-32C, masked.

    >>> checksum(b"123456789")
    b'\\xe5\\xb0\\x8a\\xc7'
    """
    crc = google_crc32c.value(data)
    return _UINT32.pack(((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


@functools.lru_cache(maxsize=1024)
def _header(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + checksum(packed)


# TensorBoard expects this in the first event of a file.
_FILE_VERSION = "brain.Event:2"

_numbers = itertools.count()


class EventFile:
    """A new event file in a directory or URL, which is open only during writes.

    The next flush writes the serialized events in `waiting`. `flushed_at` is the
    `time.monotonic()` of the last flush, in seconds.
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
        # TensorBoard's `EventFileWriter` would open the file through TensorFlow
        # if it is installed.
        open(self._file.path, "xb").close()
        self._size = 0
        first = event_pb2.Event(wall_time=now, file_version=_FILE_VERSION)
        self.waiting = [first.SerializeToString()]
        self.flush()

    def flush(self) -> None:
        """Writes all waiting events, which keep waiting if the file cannot be written.

        Raises `FileNotFoundError` if the file was deleted.
        """
        records = framed(self.waiting)
        # The file is not opened for appending, which would recreate a deleted
        # file without its first event, and continue after bytes that a full
        # disk has cut off. It has no buffer, which would be the largest cost
        # here.
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
        """Flushes the file, unless it was deleted, and publishes it."""
        if self.waiting:
            try:
                self.flush()
            except FileNotFoundError:
                return
        self._file.show()


_logger = logging.getLogger(__name__)

# A record consists of its length, the checksum of that, the data, and their
# checksum.
_LENGTH = struct.Struct("<Q")


class _CorruptEventError(Exception):
    """The rest of a file is corrupt."""


def read_scalars(
    files: Iterable[PathLike],
) -> dict[int, dict[str, float]]:
    """Returns the scalars of event files by step, in ascending order, and by tag.

    Each file is read up to its first corrupt event, for which a warning is logged. If
    several files have the same tag at the same step, the last one counts.
    """
    scalars_by_step: dict[int, dict[str, float]] = {}
    for path in files:
        name = os.fsdecode(path)
        for step, scalars in _scalars(name, paths.version(name)):
            scalars_by_step.setdefault(step, {}).update(scalars)
    return dict(sorted(scalars_by_step.items()))


# Event files change rarely, and are read often.
@functools.lru_cache(maxsize=64)
def _scalars(
    path: str, version: tuple[Any, ...]
) -> tuple[tuple[int, Mapping[str, float]], ...]:
    """Returns the step and scalars of each event with scalars."""
    del version  # It is only a part of the cache's key.
    from google.protobuf import message
    from tensorboard.compat.proto import event_pb2

    events = []
    with paths.opened(path) as file:
        try:
            for record in _records(file):
                event = event_pb2.Event.FromString(record)
                scalars = {
                    value.tag: value.simple_value
                    for value in event.summary.value
                    if value.HasField("simple_value")
                }
                if scalars:
                    events.append((event.step, scalars))
        except (_CorruptEventError, message.DecodeError) as error:
            _logger.warning("%s is read up to a corrupt event: %s", path, error)
    return tuple(events)


def _records(file: BinaryIO) -> Iterator[bytes]:
    while header := file.read(_LENGTH.size):
        if file.read(CHECKSUM_SIZE) != checksum(header):
            raise _CorruptEventError("its length is wrong or truncated")
        (length,) = _LENGTH.unpack(header)
        record = file.read(length)
        if file.read(CHECKSUM_SIZE) != checksum(record):
            raise _CorruptEventError("its data are wrong or truncated")
        yield record
