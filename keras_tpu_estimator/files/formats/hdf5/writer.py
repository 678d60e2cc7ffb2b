"""Writers of checkpoint files: named variables in HDF5, followed by checksums.

Each host writes its shards of variables into its own file, one after the other,
so that no shard is in memory twice. When these are complete, the chief writes
the main file, which contains the locations of the shards.
"""

import dataclasses
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import h5py
import numpy as np
import numpy.typing as npt

from keras_tpu_estimator.base.common.index_ranges import IndexRanges
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.files.atomic import checksum, commit
from keras_tpu_estimator.files.directory import layouts
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats.hdf5 import encoding
from keras_tpu_estimator.files.formats.hdf5.encoding import Shard, Sharded
from keras_tpu_estimator.files.formats.reader import StoredVariable
from keras_tpu_estimator.files.formats.shards import ShardedVariable, ShardValues

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_PAGE = 1 << 12


class SparseFile(io.RawIOBase):
    """A file in memory that stores only the bytes written to it.

    It receives the structure of an HDF5 file, without the data. HDF5 cannot handle a
    full disk: it fails again when it is closed, and can end the process. Therefore HDF5
    writes into memory, and only this package writes to the disk.
    """

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self._size = 0
        self._at = 0

    def readable(self) -> bool:
        """Returns `True`."""
        return True

    def writable(self) -> bool:
        """Returns `True`."""
        return True

    def seekable(self) -> bool:
        """Returns `True`."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to an offset from the start, the current place, or the end."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}
        self._at = start[whence] + offset
        return self._at

    def tell(self) -> int:
        """Returns the current offset."""
        return self._at

    def truncate(self, size: int | None = None) -> int:
        """Sets the size, by default to the current offset."""
        self._size = self._at if size is None else size
        return self._size

    def write(self, content: "ReadableBuffer") -> int:
        """Writes bytes, and moves behind them."""
        view = memoryview(content).cast("B")
        for number, part, offset in self._parts(len(view)):
            page = self._pages.setdefault(number, bytearray(_PAGE))
            page[part] = view[offset : offset + part.stop - part.start]
        self._at += len(view)
        self._size = max(self._size, self._at)
        return len(view)

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Reads bytes, and moves behind them; unwritten bytes are zero."""
        view = memoryview(buffer).cast("B")
        view = view[: max(0, self._size - self._at)]
        for number, part, offset in self._parts(len(view)):
            page = self._pages.get(number, bytes(_PAGE))
            view[offset : offset + part.stop - part.start] = page[part]
        self._at += len(view)
        return len(view)

    def pages(self) -> Iterator[tuple[int, memoryview]]:
        """Yields the offsets and contents of the written pages, in order."""
        for number in sorted(self._pages):
            start = number * _PAGE
            if start < self._size:
                page = memoryview(self._pages[number])
                yield start, page[: self._size - start]

    def _parts(self, length: int) -> Iterator[tuple[int, slice, int]]:
        """Yields pages from here on: number, range, and bytes before it."""
        offset = 0
        while offset < length:
            number, start = divmod(self._at + offset, _PAGE)
            stop = min(_PAGE, start + length - offset)
            yield number, slice(start, stop), offset
            offset += stop - start


# HDF5 groups its structures in blocks of this number of bytes.
_STRUCTURE_BLOCK = 16 << 10


def write(saved: SaveFiles, variables: Mapping[str, npt.ArrayLike | Sharded]) -> None:
    """Writes the main file of a save atomically."""
    entries = {
        name: value if isinstance(value, Sharded) else np.asarray(value, order="C")
        for name, value in variables.items()
    }
    arrays = (
        (name, value)
        for name, value in sorted(entries.items())
        if not isinstance(value, Sharded)
    )
    path = layouts.HDF5.main(saved.prefix)
    write_file(path, entries, arrays, saved.token)


def write_file(
    path: str,
    variables: Mapping[str, np.ndarray | StoredVariable | Sharded],
    values: Iterable[tuple[str, np.ndarray]],
    token: str,
) -> int:
    """Writes a file atomically, value by value, and returns its seal.

    `values` yields all arrays that are not scalars.
    """
    with commit.replacing(path, is_kept=True) as partial:
        offsets = _write_structure(partial, variables)
        seal = checksum.append(
            partial,
            [
                piece
                for name, value in values
                if name in offsets
                for piece in checksum.write(
                    partial, [checksum.Extent.from_array(offsets[name], value)]
                )
            ],
            token,
        )
    return seal


def _write_structure(
    path: str, variables: Mapping[str, np.ndarray | StoredVariable | Sharded]
) -> dict[str, int]:
    """Writes everything except the data, and returns their offsets by path."""
    sparse = SparseFile()
    # HDF5 writes the format of version 1.10 in half the time of the oldest
    # format.
    with h5py.File(
        sparse,
        "w",
        libver=("v110", "v110"),
        meta_block_size=_STRUCTURE_BLOCK,
    ) as file:
        offsets = encoding.lay_out(file, variables)
    with open(path, "wb") as file:
        for offset, page in sparse.pages():
            file.seek(offset)
            file.write(page)
        file.truncate(sparse.seek(0, os.SEEK_END))
    return offsets


@dataclasses.dataclass(frozen=True)
class ShardFiles:
    """The files with shards of variables in a checkpoint, known to all processes."""

    saved: SaveFiles
    variables: Mapping[str, ShardedVariable]

    def write(self, values: Mapping[str, ShardValues], process: int) -> int | None:
        """Writes a process's file; returns its seal, or `None` without shards."""
        parts = dict(self._parts(process))
        if not parts:
            return None
        described = {
            key: StoredVariable(box.shape, self.variables[path].dtype)
            for key, (path, box) in parts.items()
        }
        arrays = (
            (key, np.asarray(values[path].part(box), order="C"))
            for key, (path, box) in parts.items()
        )
        paths.make_directory(os.path.dirname(self.saved.prefix))
        return write_file(self._file(process), described, arrays, self.saved.token)

    def located(self, seals: Sequence[int | None]) -> dict[str, Sharded]:
        """Returns the locations of shards for the main file, from each file's seal."""
        shards: dict[str, list[Shard]] = {path: [] for path in self.variables}
        for process in self._processes:
            parts = dict(self._parts(process))
            keys = encoding.keys(parts)
            name = os.path.basename(self._file(process))
            seal = seals[process]
            if seal is None:
                raise RuntimeError(f"Process {process} must have written its shards.")
            for part, (path, box) in parts.items():
                shards[path].append(Shard(box, name, keys[part], seal))
        return {
            path: Sharded(variable.shape, variable.dtype, tuple(shards[path]))
            for path, variable in self.variables.items()
        }

    @property
    def _processes(self) -> list[int]:
        """The processes that have shards to write."""
        return sorted(
            {
                process
                for variable in self.variables.values()
                for process in variable.writers.values()
            }
        )

    def _file(self, process: int) -> str:
        writers = self._processes
        return self.saved.named(f"shard-{writers.index(process)}-of-{len(writers)}")

    def _parts(self, process: int) -> Iterator[tuple[str, tuple[str, IndexRanges]]]:
        """Yields the name, variable and box of each shard in a process's file."""
        for path, variable in sorted(self.variables.items()):
            for box, writer in sorted(variable.writers.items()):
                if writer == process:
                    start = "_".join(map(str, box.start))
                    yield f"{path}/{start}", (path, box)
