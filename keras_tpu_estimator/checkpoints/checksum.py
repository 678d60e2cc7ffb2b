"""A checksum at the end of a file, so that damage is an error.

HDF5 protects no data, and a damaged structure can crash the whole process
inside the HDF5 library. HDF5 ignores what follows its own end, so a trailer
there leaves the file readable by everybody.
"""

import functools
import os
import struct
import zlib
from typing import BinaryIO

_MAGIC = b"KTECRC32"
_TRAILER = struct.Struct("<8sQI")  # magic, bytes before the trailer, their CRC
_CHUNK = 1 << 20


def append(path: str) -> None:
    """Adds the checksum of a file to its end.

    Args:
        path: A complete file without a checksum.

    Example:

    >>> import os, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "file")
    >>> size = path.write_bytes(b"content")
    >>> append(str(path))
    >>> is_intact(str(path))
    True
    """
    with open(path, "rb+") as file:
        length = file.seek(0, os.SEEK_END)
        crc = _crc(file, length)
        file.write(_TRAILER.pack(_MAGIC, length, crc))


def is_intact(path: str) -> bool:
    """Whether a file is as it was when its checksum was added.

    The answer is remembered for as long as size and time of the file stay.

    Args:
        path: An existing file.

    Returns:
        False if bytes were changed, or if there is no checksum: the end was
        cut off, or another program wrote the file.

    Example:

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "file")
    >>> size = path.write_bytes(b"content")
    >>> append(str(path))
    >>> size = path.write_bytes(path.read_bytes().replace(b"ten", b"man"))
    >>> is_intact(str(path))
    False
    """
    status = os.stat(path)
    identity = (status.st_dev, status.st_ino, status.st_mtime_ns)
    return _is_intact(os.path.abspath(path), status.st_size, identity)


@functools.lru_cache(maxsize=64)
def _is_intact(path: str, size: int, identity: tuple[int, ...]) -> bool:
    del identity  # Part of the cache's key only.
    length = size - _TRAILER.size
    if length < 0:
        return False
    with open(path, "rb") as file:
        file.seek(length)
        magic, expected_length, expected = _TRAILER.unpack(
            file.read(_TRAILER.size)
        )
        is_ours = magic == _MAGIC and expected_length == length
        return is_ours and _crc(file, length) == expected


def _crc(file: BinaryIO, length: int) -> int:
    """The checksum of the first bytes; leaves the file at their end."""
    file.seek(0)
    crc = 0
    while length:
        chunk = file.read(min(length, _CHUNK))
        if not chunk:
            break
        crc = zlib.crc32(chunk, crc)
        length -= len(chunk)
    return crc
