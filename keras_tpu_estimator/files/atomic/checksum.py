"""Checksums at the end of a file, so that corruption raises an error.

HDF5 does not protect its data, and a corrupt structure can crash the process
inside the HDF5 library. HDF5 ignores everything after its own end, so other
programs can still read a file with a trailer there. The trailer contains a
table of the pieces in which the data were written, each with its checksum, and
one checksum of everything else, including the table. This lets readers check
the structure without reading the data.

The last bytes of each file are a stamp: it marks the file as this package's,
and names the save that wrote it. Users could also have a file of that name.
"""

import os
import re
import secrets
import struct
import zlib
from collections.abc import Iterable
from typing import BinaryIO

import numpy as np

from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.base.storage.transfers import local_copy
from keras_tpu_estimator.files.atomic import pieces as pieces_of
from keras_tpu_estimator.files.atomic.pieces import CorruptPieceError, Piece

_MAGIC = b"KTESAVED"
_TOKEN = re.compile(rb"[0-9a-f]{8}")
# The token of files that are the same in every save.
NO_TOKEN = "0" * 8
SIZE = len(_MAGIC) + len(NO_TOKEN)


def new_token() -> str:
    """Returns a token that identifies one save.

    Example:

    >>> len(new_token())
    8
    """
    return secrets.token_hex(4)


def stamp(token: str) -> bytes:
    """Returns the last bytes of a file of a save.

    Example:

    >>> stamp("0f0f0f0f"), token_in(stamp("0f0f0f0f"))
    (b'KTESAVED0f0f0f0f', '0f0f0f0f')
    """
    return _MAGIC + token.encode()


def token_in(end: bytes) -> str | None:
    """Returns the save's token in the last bytes of a file, or `None`.

    Args:
        end: At least the last `SIZE` bytes.
    """
    magic, token = end[-SIZE : -len(NO_TOKEN)], end[-len(NO_TOKEN) :]
    is_ours = magic == _MAGIC and _TOKEN.fullmatch(token)
    return token.decode() if is_ours else None


def token_of(path: str) -> str | None:
    """Returns the token of the save that wrote a file or URL.

    The result is `None` if no save wrote the file, or if it is missing or
    unreadable.

    Example:

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "file")
    >>> size = path.write_bytes(b"content" + stamp("0f0f0f0f"))
    >>> token_of(str(path)), token_of("/nowhere")
    ('0f0f0f0f', None)
    """
    try:
        with paths.opened(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - SIZE))
            return token_in(file.read(SIZE))
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        return None


# Bytes before the table, rows of the table, checksum of everything except the
# pieces, stamp.
_TRAILER = struct.Struct(f"<QQI{SIZE}s")
_ROW = np.dtype([("offset", "<u8"), ("length", "<u8"), ("crc", "<u4")])


def append(path: str, pieces: Iterable[Piece] = (), token: str = NO_TOKEN) -> int:
    """Appends checksums to a complete file, and returns its `seal`.

    Args:
        pieces: The pieces of the file whose checksums are known.
        token: The token of the save that the file belongs to.

    Example:

    >>> import os, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "file")
    >>> size = path.write_bytes(b"content")
    >>> append(str(path)) == seal(str(path))
    True
    >>> is_right(str(path))
    True
    """
    table = np.array(sorted(pieces), _ROW)
    with open(path, "rb+") as file:
        length = file.seek(0, os.SEEK_END)
        crc = _crc_of_rest(file.fileno(), length, table, token)
        file.write(table.tobytes())
        file.write(_TRAILER.pack(length, len(table), crc, stamp(token)))
    return crc


def seal(path: str | int) -> int | None:
    """Returns the checksum that identifies a file's content.

    It covers all other checksums. It says which content the file should have,
    without checking that it has it. The result is `None` for a file without
    checksums.

    Example:

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "file")
    >>> size = path.write_bytes(b"content")
    >>> seal(str(path)) is None
    True
    """
    with open(path, "rb", closefd=isinstance(path, str)) as file:
        trailer = _trailer(file)
    return trailer and trailer[2]


def load(path: str | int) -> dict[int, Piece] | None:
    """Checks a file except its pieces, and returns these by offset.

    The result is `None` if bytes were changed, if the end was cut off, or if
    another program wrote the file.

    Example:

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "file")
    >>> size = path.write_bytes(b"content")
    >>> crc = append(str(path))
    >>> load(str(path))
    {}
    >>> size = path.write_bytes(path.read_bytes().replace(b"ten", b"man"))
    >>> load(str(path)) is None
    True
    """
    with open(path, "rb", closefd=isinstance(path, str)) as file:
        trailer = _trailer(file)
        if trailer is None:
            return None
        length, rows, crc, token = trailer
        file.seek(length)
        table = np.frombuffer(file.read(rows * _ROW.itemsize), _ROW)
        try:
            if _crc_of_rest(file.fileno(), length, table, token) != crc:
                return None
        except CorruptPieceError:
            return None
    return {row[0]: Piece(*row) for row in table.tolist()}


def is_right(path: str) -> bool:
    """Returns whether a file is unchanged since its checksums were added.

    This reads every byte of the file.

    Example:

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "file")
    >>> size = path.write_bytes(b"content")
    >>> is_right(str(path))
    False
    """
    copy = local_copy(path)
    pieces = load(copy.path)
    if pieces is None:
        return False
    try:
        pieces_of.check(copy.path, pieces.values())
    except CorruptPieceError:
        return False
    return True


def _trailer(file: BinaryIO) -> tuple[int, int, int, str] | None:
    """Returns the bytes before the table, its rows, the checksum and token."""
    size = file.seek(0, os.SEEK_END)
    if size < _TRAILER.size:
        return None
    file.seek(size - _TRAILER.size)
    length, rows, crc, end = _TRAILER.unpack(file.read(_TRAILER.size))
    token = token_in(end)
    if token is None or length + rows * _ROW.itemsize != size - _TRAILER.size:
        return None
    return length, rows, crc, token


def _crc_of_rest(descriptor: int, length: int, table: np.ndarray, token: str) -> int:
    """Returns the checksum of everything except the pieces.

    Raises:
        CorruptPieceError: The pieces overlap or exceed the file.
    """
    crc = at = 0
    for offset, size, _ in table.tolist():
        if offset < at:
            raise CorruptPieceError(offset)
        crc = pieces_of.crc_of(descriptor, at, offset, crc)
        at = offset + size
    if at > length:
        raise CorruptPieceError(at)
    crc = pieces_of.crc_of(descriptor, at, length, crc)
    return zlib.crc32(table.tobytes() + token.encode(), crc)
