"""A file in memory that has only what was written into it."""

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from _typeshed import WriteableBuffer

_PAGE = 1 << 12


class SparseFile(io.RawIOBase):
    """Takes the structure of an HDF5 file, whose data are left out.

    HDF5 cannot be told that a disk is full: it fails again when it is closed,
    and can end the process. So it writes into memory, and only this package
    writes to the disk.

    Example:

    >>> file = SparseFile()
    >>> file.seek(1 << 40)
    1099511627776
    >>> file.write(b"end")
    3
    >>> [(offset, len(page)) for offset, page in file.pages()]
    [(1099511627776, 3)]
    """

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self._size = 0
        self._at = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def writable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Goes to a place, counted from the beginning, here, or the end."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}
        self._at = start[whence] + offset
        return self._at

    def tell(self) -> int:
        """The place where it is."""
        return self._at

    def truncate(self, size: int | None = None) -> int:
        """Makes it end at a place, by default here."""
        self._size = self._at if size is None else size
        return self._size

    def write(self, content: "ReadableBuffer") -> int:
        """Writes, and goes on."""
        view = memoryview(content).cast("B")
        for number, part, done in self._parts(len(view)):
            page = self._pages.setdefault(number, bytearray(_PAGE))
            page[part] = view[done : done + part.stop - part.start]
        self._at += len(view)
        self._size = max(self._size, self._at)
        return len(view)

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Reads, and goes on; what was never written is zero."""
        view = memoryview(buffer).cast("B")
        view = view[: max(0, self._size - self._at)]
        for number, part, done in self._parts(len(view)):
            page = self._pages.get(number, bytes(_PAGE))
            view[done : done + part.stop - part.start] = page[part]
        self._at += len(view)
        return len(view)

    def pages(self) -> Iterator[tuple[int, memoryview]]:
        """What was written, in order, with zeros between; and where it is."""
        for number in sorted(self._pages):
            start = number * _PAGE
            if start < self._size:
                page = memoryview(self._pages[number])
                yield start, page[: self._size - start]

    def _parts(self, length: int) -> Iterator[tuple[int, slice, int]]:
        """Pages from here on: number, part, and how much comes before it."""
        done = 0
        while done < length:
            number, start = divmod(self._at + done, _PAGE)
            stop = min(_PAGE, start + length - done)
            yield number, slice(start, stop), done
            done += stop - start
