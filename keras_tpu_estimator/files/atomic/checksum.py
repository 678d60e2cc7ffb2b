"""Checksums at the end of a file, so that damage is an error.

HDF5 protects no data, and a damaged structure can crash the whole process
inside the HDF5 library. HDF5 ignores what follows its own end, so a trailer
there leaves the file readable by everybody. It has a table of the pieces that
data were written in, each with its checksum, and one checksum of all the rest,
the table included. So the structure is checked without reading the data.
"""

import os
import re
import secrets
import struct
import zlib
from collections.abc import Iterable
from typing import BinaryIO

import numpy as np

from keras_tpu_estimator.files.atomic import pieces as pieces_of
from keras_tpu_estimator.files.atomic.pieces import CorruptPieceError
from keras_tpu_estimator.files.atomic.pieces import Piece
from keras_tpu_estimator.ground.storage import paths
from keras_tpu_estimator.ground.storage.copies import local_copy

_MAGIC = b"KTESAVED"
_TOKEN = re.compile(rb"[0-9a-f]{8}")
# Of files that are the same for every save.
NO_TOKEN = "0" * 8
SIZE = len(_MAGIC) + len(NO_TOKEN)


def new_token() -> str:
    """What tells one save from all others.

    Example:

    >>> len(new_token())
    8
    """
    return secrets.token_hex(4)


def stamp(token: str) -> bytes:
    """The last bytes of a file of a save.

    Args:
        token: That of the save.

    Example:

    >>> stamp("0f0f0f0f"), token_in(stamp("0f0f0f0f"))
    (b'KTESAVED0f0f0f0f', '0f0f0f0f')
    """
    return _MAGIC + token.encode()


def token_in(end: bytes) -> str | None:
    """The token of the save that a file belongs to.

    Args:
        end: Its last bytes, `SIZE` of them or more.

    Returns:
        The token; `None` if the file is of no save.
    """
    magic, token = end[-SIZE : -len(NO_TOKEN)], end[-len(NO_TOKEN) :]
    is_ours = magic == _MAGIC and _TOKEN.fullmatch(token)
    return token.decode() if is_ours else None


def token_of(path: str) -> str | None:
    """The token of the save that a file belongs to.

    Args:
        path: A path or URL.

    Returns:
        The token; `None` if the file is of no save, or not there, or not to be
        read by this user.

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


# Bytes before the table, rows of the table, CRC of all but the pieces, stamp.
_TRAILER = struct.Struct(f"<QQI{SIZE}s")
_ROW = np.dtype([("offset", "<u8"), ("length", "<u8"), ("crc", "<u4")])


def append(
    path: str, pieces: Iterable[Piece] = (), token: str = NO_TOKEN
) -> int:
    """Adds checksums to the end of a file.

    Args:
        path: A complete file without checksums.
        pieces: The pieces of it whose checksums are known. Defaults to none.
        token: That of the save that the file belongs to. Defaults to that of
            none.

    Returns:
        What `seal` gives for the file from now on.

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
    """What tells a file with checksums from others.

    It is a checksum of the others, and of all else: it says which content the
    file should have, not that it has it.

    Args:
        path: An existing file, or its descriptor.

    Returns:
        A number; `None` if there are no checksums at its end.

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
    """Checks all of a file but its pieces.

    Args:
        path: An existing file, or its descriptor.

    Returns:
        The pieces by offset, still to be checked. `None` if bytes were
        changed, or if there are no checksums: the end was cut off, or another
        program wrote the file.

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
    """Whether a file is as it was when its checksums were added.

    Args:
        path: An existing file, or its URL, of which every byte is read.

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
    """Bytes before the table, its rows, the CRC of all that, and the token."""
    size = file.seek(0, os.SEEK_END)
    if size < _TRAILER.size:
        return None
    file.seek(size - _TRAILER.size)
    length, rows, crc, end = _TRAILER.unpack(file.read(_TRAILER.size))
    token = token_in(end)
    if token is None or length + rows * _ROW.itemsize != size - _TRAILER.size:
        return None
    return length, rows, crc, token


def _crc_of_rest(
    descriptor: int, length: int, table: np.ndarray, token: str
) -> int:
    """The checksum of what is between the pieces, of their table, and token.

    Raises:
        CorruptPieceError: There cannot be such pieces.
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
