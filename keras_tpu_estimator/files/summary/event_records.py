"""TensorBoard's records: summaries of steps as they are in an event file.

There may be one for each of many thousand steps a second, so an event's few
fields are put together here, and not by a message of Protocol Buffers.
"""

import functools
import struct
from collections.abc import Iterable

import google_crc32c

_DOUBLE = struct.Struct("<d")
_UINT32 = struct.Struct("<I")
CHECKSUM_SIZE = _UINT32.size
# Added to a checksum, so that one of data with checksums inside is a good one.
_MASK = 0xA282EAD8
_SIXTY_FOUR_BITS = (1 << 64) - 1


def serialized(wall_time: float, step: int, summary: bytes) -> bytes:
    """An `Event`: a summary at a step.

    Args:
        wall_time: The time in seconds since 1970.
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


def framed(events: Iterable[bytes]) -> bytes:
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
    return b"".join(
        part
        for event in events
        for part in (_header(len(event)), event, checksum(event))
    )


def checksum(data: bytes) -> bytes:
    """The checksum of a record: CRC-32C, masked.

    Args:
        data: What it is of.

    Returns:
        Four bytes.

    Example:

    >>> checksum(b"123456789")
    b'\xe5\xb0\x8a\xc7'

    Reference: the TFRecord format of TensorFlow.
    """
    crc = google_crc32c.value(data)
    return _UINT32.pack(((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


@functools.lru_cache(maxsize=1024)
def _header(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + checksum(packed)
