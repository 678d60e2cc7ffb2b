"""The checksums of TensorBoard's records: CRC-32C, masked.

TensorBoard's own writer computes one byte by byte in Python, which takes longer
than all else that is done for an event. Here those of many events, which differ
in a few bytes, are computed side by side.
"""

import functools
import struct
from collections.abc import Sequence

import numpy as np

_POLYNOMIAL = np.uint32(0x82F63B78)  # Its bits in reverse.
_MASK = 0xA282EAD8
# Of fewer or longer events, TensorBoard's way is the faster one.
_LEAST_EVENTS = 24
_MOST_BYTES = 1024


def masked_crc32c(events: Sequence[bytes]) -> list[bytes]:
    """The checksums of events of one length, as they are in a file.

    Args:
        events: Serialized events, at least one.

    Returns:
        Four bytes for each.

    Example:

    >>> masked_crc32c([b"123456789"])
    [b'\\xe5\\xb0\\x8a\\xc7']

    Reference: the TFRecord format of TensorFlow.
    """
    length = len(events[0])
    if len(events) < _LEAST_EVENTS or not 0 < length <= _MOST_BYTES:
        return [struct.pack("<I", _masked_crc32c(event)) for event in events]
    rows = np.frombuffer(b"".join(events), np.uint8).reshape(-1, length)
    # A CRC is linear: what an event changes in that of the first one depends
    # on its bytes that differ, and on how far from the end each is.
    difference = rows ^ rows[0]
    (differing,) = difference.any(axis=0).nonzero()
    distances = length - 1 - differing
    changes = _tables()[distances, difference[:, differing]]
    crc = np.bitwise_xor.reduce(changes, axis=1) ^ _unmasked(events[0])
    crc = crc.astype(np.uint64)
    masked = (((crc >> 15) | (crc << 17)) + _MASK).astype("<u4").tobytes()
    return [masked[at : at + 4] for at in range(0, len(masked), 4)]


def _masked_crc32c(event: bytes) -> int:
    from tensorboard.summary.writer import record_writer

    return record_writer.masked_crc32c(event)


def _unmasked(event: bytes) -> np.uint32:
    rotated = (_masked_crc32c(event) - _MASK) & 0xFFFFFFFF
    return np.uint32(((rotated << 15) | (rotated >> 17)) & 0xFFFFFFFF)


@functools.cache
def _tables() -> np.ndarray:
    """What each byte does to a checksum, by its distance from the end."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ _POLYNOMIAL, table >> 1)
    # One byte further from the end is one step of the CRC more.
    tables = [table]
    for _ in range(_MOST_BYTES - 1):
        tables.append(table[tables[-1] & 0xFF] ^ (tables[-1] >> 8))
    return np.array(tables)
