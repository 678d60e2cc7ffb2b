"""TensorBoard's records: summaries of steps as they are in an event file.

There may be one for each of many thousand steps a second, so an event's few
fields are put together here, and not by a message of Protocol Buffers.
"""

import collections
import functools
import struct
from collections.abc import Sequence

from keras_tpu_estimator.summary.crc32c import masked_crc32c

_DOUBLE = struct.Struct("<d")
_SIXTY_FOUR_BITS = (1 << 64) - 1


def serialized(wall_time: float, step: int, summary: bytes) -> bytes:
    """An `Event`: a summary at a step.

    Args:
        wall_time: The time in seconds since 1970.
        step: The global step.
        summary: A serialized `Summary`.

    Example:

    >>> from tensorboard.compat.proto import event_pb2
    >>> event = serialized(wall_time=0.5, step=300, summary=b"")
    >>> event_pb2.Event.FromString(event).step
    300
    """
    # Each field comes after its key.
    return b"\x09%b\x10%b\x2a%b%b" % (
        _DOUBLE.pack(wall_time),
        varint(step),
        varint(len(summary)),
        summary,
    )


def varint(number: int) -> bytes:
    """An integer of 64 bits as Protocol Buffers write it.

    Args:
        number: The integer.

    Example:

    >>> varint(300)
    b'\\xac\\x02'
    """
    rest = number & _SIXTY_FOUR_BITS
    groups = []
    while rest > 0x7F:
        groups.append(rest & 0x7F | 0x80)
        rest >>= 7
    groups.append(rest)
    return bytes(groups)


def framed(events: Sequence[bytes]) -> bytes:
    """Events as they are in a file.

    Args:
        events: Serialized events, in order.

    Returns:
        One record after the other: length, its checksum, event, its checksum.

    Example:

    >>> len(framed([b"one", b"three"]))
    40

    Reference: the TFRecord format of TensorFlow.
    """
    by_length = collections.defaultdict(list)
    for index, event in enumerate(events):
        by_length[len(event)].append(index)
    records = [b""] * len(events)
    for length, indices in by_length.items():
        header = _header(length)
        sums = masked_crc32c([events[index] for index in indices])
        for index, checksum in zip(indices, sums, strict=True):
            records[index] = b"%b%b%b" % (header, events[index], checksum)
    return b"".join(records)


@functools.lru_cache(maxsize=1024)
def _header(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    (checksum,) = masked_crc32c([packed])
    return packed + checksum
