"""Checksums of files and of their pieces, so that corruption raises an error.

HDF5 does not protect its data, and a corrupt structure can crash the process
inside the HDF5 library. HDF5 ignores everything after its own end, so other
programs can still read a file with a trailer there. The trailer contains a
table of the pieces in which the data were written, each with its checksum, and
one checksum of everything else, including the table. This lets readers check
the structure without reading the data.

Checksums are computed while written data are in the processor's cache, so that a large
file is not read twice. Writing and computing checksums both release Python's lock.

The last bytes of each file are a stamp: it marks the file as this package's,
and names the save that wrote it. Users could also have a file of that name.
"""

import concurrent.futures
import io
import os
import re
import secrets
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

from keras_tpu_estimator.base.storage import paths, shared_files
from keras_tpu_estimator.base.storage.transfers import local_copy

_PIECE = 16 << 20
_CHUNK = 1 << 20
_THREADS = min(4, os.cpu_count() or 1)


class Piece(NamedTuple):
    """A range of a file, from byte `offset`, with its CRC-32."""

    offset: int
    length: int
    crc: int

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.offset + self.length


class Extent(NamedTuple):
    """The memory, as bytes, for a range of a file that begins at byte `offset`."""

    offset: int
    content: memoryview

    @classmethod
    def from_array(cls, offset: int, array: np.ndarray) -> "Extent":
        """Returns the extent of a contiguous array."""
        return cls(offset, array.reshape(-1).view(np.uint8).data)


class CorruptPieceError(Exception):
    """A piece is missing, or has changed since it was written."""

    def __init__(self, offset: int):
        super().__init__(f"the checksum of its bytes at {offset} is wrong")


def write(path: str, extents: Iterable[Extent]) -> list[Piece]:
    """Writes memory into an existing file, and returns the pieces written."""
    with open(path, "rb+", buffering=0) as file:
        return [
            _write_piece(file.fileno(), Extent(extent.offset + at, content))
            for extent in sorted(extents, key=lambda extent: extent.offset)
            for at, content in _cut(extent.content, _PIECE)
        ]


def read(
    path: str | int, extents: Iterable[Extent], pieces: Mapping[int, Piece]
) -> None:
    """Reads parts of a file, or raises `CorruptPieceError` if a checksum is wrong.

    `pieces` has the pieces of these extents by offset.
    """
    _verify(path, [job for extent in extents for job in _jobs(extent, pieces)])


def chunks(path: str | int, piece: Piece) -> Iterator[tuple[int, memoryview]]:
    """Yields the offset within the piece and the bytes of each small chunk.

    The next chunk overwrites the memory of the previous one. The checksum is checked
    after the last chunk.
    """
    memory = memoryview(bytearray(min(_CHUNK, piece.length)))
    crc = 0
    with _opened(path) as file:
        for at in range(0, piece.length, _CHUNK):
            chunk = memory[: piece.length - at]
            _fill(file.fileno(), chunk, piece.offset + at)
            crc = zlib.crc32(chunk, crc)
            yield at, chunk
    if crc != piece.crc:
        raise CorruptPieceError(piece.offset)


def check(path: str, pieces: Iterable[Piece]) -> None:
    """Raises `CorruptPieceError` if the checksum of a piece is wrong."""
    _verify(path, [_Job(piece) for piece in pieces])


def crc_of(descriptor: int, start: int, end: int, crc: int = 0) -> int:
    """Returns the checksum of a range; `crc` is the checksum of the bytes before it.

    Raises `CorruptPieceError` if the file ends inside the range.
    """
    memory = memoryview(bytearray(min(_CHUNK, max(0, end - start))))
    while start < end:
        chunk = memory[: end - start]
        _fill(descriptor, chunk, start)
        crc = zlib.crc32(chunk, crc)
        start += len(chunk)
    return crc


def _cut(memory: memoryview, size: int) -> Iterator[tuple[int, memoryview]]:
    """Yields parts of memory with their offsets."""
    for at in range(0, len(memory), size):
        yield at, memory[at : at + size]


def _write_piece(descriptor: int, extent: Extent) -> Piece:
    crc = 0
    for at, chunk in _cut(extent.content, _CHUNK):
        crc = zlib.crc32(chunk, crc)
        offset = extent.offset + at
        while chunk:
            written = shared_files.write_at(descriptor, chunk, offset)
            chunk, offset = chunk[written:], offset + written
    return Piece(extent.offset, len(extent.content), crc)


class _Job(NamedTuple):
    """A piece to check, and the memory to read it into, if any."""

    piece: Piece
    memory: memoryview | None = None

    def run(self, descriptor: int) -> None:
        piece = self.piece
        if self.memory is None:
            crc = crc_of(descriptor, piece.offset, piece.end)
        else:
            crc = _read_piece(descriptor, piece.offset, self.memory)
        if crc != piece.crc:
            raise CorruptPieceError(piece.offset)


def _jobs(extent: Extent, pieces: Mapping[int, Piece]) -> Iterator[_Job]:
    at, end = 0, len(extent.content)
    while at < end:
        piece = pieces.get(extent.offset + at)
        if piece is None or not 0 < piece.length <= end - at:
            raise CorruptPieceError(extent.offset + at)
        yield _Job(piece, extent.content[at : at + piece.length])
        at += piece.length


def _opened(path: str | int) -> io.FileIO:
    return open(path, "rb", buffering=0, closefd=isinstance(path, str))


def _verify(path: str | int, jobs: Sequence[_Job]) -> None:
    """Runs all jobs, on several threads if there is enough data."""
    with _opened(path) as file:
        if sum(job.piece.length for job in jobs) <= _PIECE:
            for job in jobs:
                job.run(file.fileno())
            return
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
            for running in [threads.submit(job.run, file.fileno()) for job in jobs]:
                running.result()


def _read_piece(descriptor: int, offset: int, memory: memoryview) -> int:
    crc = 0
    for at, chunk in _cut(memory, _CHUNK):
        _fill(descriptor, chunk, offset + at)
        crc = zlib.crc32(chunk, crc)
    return crc


def _fill(descriptor: int, memory: memoryview, offset: int) -> None:
    while memory:
        count = shared_files.read_at(descriptor, memory, offset)
        if not count:
            raise CorruptPieceError(offset)
        memory, offset = memory[count:], offset + count


_MAGIC = b"KTESAVED"
_TOKEN = re.compile(rb"[0-9a-f]{8}")
# The token of files that are the same in every save.
NO_TOKEN = "0" * 8
SIZE = len(_MAGIC) + len(NO_TOKEN)


def new_token() -> str:
    """Returns a token that identifies one save."""
    return secrets.token_hex(4)


def stamp(token: str) -> bytes:
    """Returns the last bytes of a file of a save.

    >>> stamp("0f0f0f0f"), token_in(stamp("0f0f0f0f"))
    (b'KTESAVED0f0f0f0f', '0f0f0f0f')
    """
    return _MAGIC + token.encode()


def token_in(end: bytes) -> str | None:
    """Returns the save's token in a file's last `SIZE` or more bytes, or `None`."""
    magic, token = end[-SIZE : -len(NO_TOKEN)], end[-len(NO_TOKEN) :]
    is_ours = magic == _MAGIC and _TOKEN.fullmatch(token)
    return token.decode() if is_ours else None


def token_of(path: str) -> str | None:
    """Returns the token of the save that wrote a readable file or URL, or `None`."""
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
    """Appends a trailer with known pieces to a complete file; returns its `seal`."""
    table = np.array(sorted(pieces), _ROW)
    with open(path, "rb+") as file:
        length = file.seek(0, os.SEEK_END)
        crc = _crc_of_rest(file.fileno(), length, table, token)
        file.write(table.tobytes())
        file.write(_TRAILER.pack(length, len(table), crc, stamp(token)))
    return crc


def seal(path: str | int) -> int | None:
    """Returns the checksum of a file's other checksums, or `None` without checksums.

    It identifies the content that the file should have, without checking the content.
    """
    with open(path, "rb", closefd=isinstance(path, str)) as file:
        trailer = _trailer(file)
    return trailer and trailer[2]


def load(path: str | int) -> dict[int, Piece] | None:
    """Checks a file except its pieces, and returns these by offset.

    The result is `None` if bytes were changed, if the end was cut off, or if another
    program wrote the file.
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
    """Returns whether a file has its original bytes, all of which are read."""
    copy = local_copy(path)
    pieces = load(copy.path)
    if pieces is None:
        return False
    try:
        check(copy.path, pieces.values())
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
    """Returns the checksum of everything except the pieces, which must not overlap."""
    crc = at = 0
    for offset, size, _ in table.tolist():
        if offset < at:
            raise CorruptPieceError(offset)
        crc = crc_of(descriptor, at, offset, crc)
        at = offset + size
    if at > length:
        raise CorruptPieceError(at)
    crc = crc_of(descriptor, at, length, crc)
    return zlib.crc32(table.tobytes() + token.encode(), crc)
