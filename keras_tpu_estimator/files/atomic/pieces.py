"""Pieces of a file, each with its own checksum.

Checksums are computed while written data are in the processor's cache, so that
a large file is not read twice. Writing and computing checksums both release
Python's lock.
"""

import concurrent.futures
import io
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_tpu_estimator.base.storage import shared_files

_PIECE = 16 << 20
_CHUNK = 1 << 20
_THREADS = min(4, os.cpu_count() or 1)


class Piece(NamedTuple):
    """A range of a file.

    Attributes:
        offset: Its first byte.
        length: Its number of bytes.
        crc: Its checksum.
    """

    offset: int
    length: int
    crc: int

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.offset + self.length


class Extent(NamedTuple):
    """Memory for a range of a file.

    Attributes:
        offset: The first byte of the range.
        content: The memory, as bytes.
    """

    offset: int
    content: memoryview

    @classmethod
    def of(cls, offset: int, array: np.ndarray) -> "Extent":
        """Returns the extent of a contiguous array."""
        return cls(offset, array.reshape(-1).view(np.uint8).data)


class CorruptPieceError(Exception):
    """A piece is missing, or has changed since it was written.

    Args:
        offset: The first byte of the piece.
    """

    def __init__(self, offset: int):
        super().__init__(f"the checksum of its bytes at {offset} is wrong")


def write(path: str, extents: Iterable[Extent]) -> list[Piece]:
    """Writes memory into an existing file, and returns the pieces written.

    Example:

    >>> import tempfile
    >>> _, path = tempfile.mkstemp()
    >>> write(path, [Extent.of(100, np.ones(2, "float32"))])
    [Piece(offset=100, length=8, crc=...)]
    """
    with open(path, "rb+", buffering=0) as file:
        return [
            _write_piece(file.fileno(), Extent(extent.offset + at, content))
            for extent in sorted(extents, key=lambda extent: extent.offset)
            for at, content in _cut(extent.content, _PIECE)
        ]


def read(
    path: str | int, extents: Iterable[Extent], pieces: Mapping[int, Piece]
) -> None:
    """Reads parts of a file into memory, and checks them.

    Args:
        pieces: The pieces of these extents, by offset.

    Raises:
        CorruptPieceError: A checksum is wrong.

    Example:

    >>> import tempfile
    >>> _, path = tempfile.mkstemp()
    >>> pieces = write(path, [Extent.of(100, np.ones(2, "float32"))])
    >>> array = np.empty(2, "float32")
    >>> read(path, [Extent.of(100, array)], {100: pieces[0]})
    >>> array
    array([1., 1.], dtype=float32)
    """
    _verify(path, [job for extent in extents for job in _jobs(extent, pieces)])


def chunks(path: str | int, piece: Piece) -> Iterator[tuple[int, memoryview]]:
    """Reads a piece in small chunks, and checks it at the end.

    Yields:
        The chunk's offset within the piece, and its bytes, in memory that the
        next
        chunk overwrites.

    Raises:
        CorruptPieceError: The checksum is wrong.

    Example:

    >>> import tempfile
    >>> _, path = tempfile.mkstemp()
    >>> (piece,) = write(path, [Extent.of(100, np.ones(2, "float32"))])
    >>> [(at, len(chunk)) for at, chunk in chunks(path, piece)]
    [(0, 8)]
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
    """Raises `CorruptPieceError` if the checksum of a piece is wrong.

    Example:

    >>> import tempfile
    >>> _, path = tempfile.mkstemp()
    >>> check(path, write(path, [Extent.of(100, np.ones(2, "float32"))]))
    """
    _verify(path, [_Job(piece) for piece in pieces])


def crc_of(descriptor: int, start: int, end: int, crc: int = 0) -> int:
    """Returns the checksum of a range of a file.

    Args:
        crc: The checksum of the bytes before the range.

    Raises:
        CorruptPieceError: The file ends inside the range.

    Example:

    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     size = file.write(b"content")
    ...     file.flush()
    ...     crc_of(file.fileno(), 3, 7) == zlib.crc32(b"tent")
    True
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
            for done in [threads.submit(job.run, file.fileno()) for job in jobs]:
                done.result()


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
