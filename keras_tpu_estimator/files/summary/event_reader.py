"""Reader of the scalars in event files, without TensorFlow."""

import functools
import logging
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.storage import paths as stored
from keras_tpu_estimator.files.summary.event_file import CHECKSUM_SIZE, checksum

_logger = logging.getLogger(__name__)

# A record consists of its length, the checksum of that, the data, and their
# checksum.
_LENGTH = struct.Struct("<Q")


class _CorruptEventError(Exception):
    """The rest of a file is corrupt."""


def read_scalars(
    paths: Iterable[PathLike],
) -> dict[int, dict[str, float]]:
    """Reads the scalars of event files.

    A file is read up to the first corrupt event, and a warning is logged.

    Args:
        paths: The files. If several have the same tag at the same step, the
            last one counts.

    Returns:
        A dict by step, in ascending order, of dicts from tags to numbers.

    Raises:
        OSError: A file cannot be read.

    Example:

    >>> import glob, tempfile
    >>> from keras_tpu_estimator.files.summary.event_writer import EventWriter
    >>> with EventWriter(tempfile.mkdtemp()) as writer:
    ...     writer.scalars({"loss": 0.25}, step=20)
    >>> read_scalars(glob.glob(f"{writer.logdir}/*.tfevents.*"))
    {20: {'loss': 0.25}}
    """
    found: dict[int, dict[str, float]] = {}
    for path in paths:
        name = os.fsdecode(path)
        for step, scalars in _scalars(name, stored.version(name)):
            found.setdefault(step, {}).update(scalars)
    return dict(sorted(found.items()))


# Event files change rarely, and are read often.
@functools.lru_cache(maxsize=64)
def _scalars(
    path: str, version: tuple[Any, ...]
) -> tuple[tuple[int, Mapping[str, float]], ...]:
    """Returns the step and scalars of each event with scalars."""
    del version  # Part of the cache's key only.
    from google.protobuf import message
    from tensorboard.compat.proto import event_pb2

    events = []
    with stored.opened(path) as file:
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
