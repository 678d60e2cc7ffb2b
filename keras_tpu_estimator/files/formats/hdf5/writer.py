"""Writers of checkpoint files: named variables in HDF5, followed by checksums.

Each host writes its shards of variables into its own file, one after the other,
so that no shard is in memory twice. When these are complete, the chief writes
the main file, which contains the locations of the shards.
"""

import dataclasses
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from keras_tpu_estimator.files.formats.reader import Stored

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
        for number, part, done in self._parts(len(view)):
            page = self._pages.setdefault(number, bytearray(_PAGE))
            page[part] = view[done : done + part.stop - part.start]
        self._at += len(view)
        self._size = max(self._size, self._at)
        return len(view)

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Reads bytes, and moves behind them; unwritten bytes are zero."""
        view = memoryview(buffer).cast("B")
        view = view[: max(0, self._size - self._at)]
        for number, part, done in self._parts(len(view)):
            page = self._pages.get(number, bytes(_PAGE))
            view[done : done + part.stop - part.start] = page[part]
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
        done = 0
        while done < length:
            number, start = divmod(self._at + done, _PAGE)
            stop = min(_PAGE, start + length - done)
            yield number, slice(start, stop), done
            done += stop - start


# HDF5 groups its structures in blocks of this number of bytes.
_STRUCTURE_BLOCK = 16 << 10


def write(saved: SaveFiles, variables: Mapping[str, npt.ArrayLike | Sharded]) -> None:
    """Writes the main file of a save atomically."""
    arrays = {
        name: each if isinstance(each, Sharded) else np.asarray(each, order="C")
        for name, each in variables.items()
    }
    values = (
        (name, each)
        for name, each in sorted(arrays.items())
        if not isinstance(each, Sharded)
    )
    path = layouts.HDF5.main(saved.prefix)
    write_file(path, arrays, values, saved.token)


def write_file(
    path: str,
    variables: Mapping[str, np.ndarray | Stored | Sharded],
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
                    partial, [checksum.Extent.of(offsets[name], value)]
                )
            ],
            token,
        )
    return seal


def _write_structure(
    path: str, variables: Mapping[str, np.ndarray | Stored | Sharded]
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
class ShardedVariable:
    """A variable with shards on several devices, and the host that writes each.

    `dtype` is the NumPy dtype in the checkpoint. `part` returns a shard that this host
    writes.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    hosts: Mapping[IndexRanges, int]
    part: Callable[[IndexRanges], np.ndarray]


@dataclasses.dataclass(frozen=True)
class ShardFiles:
    """The files with shards of variables in a checkpoint, known to all hosts."""

    saved: SaveFiles
    variables: Mapping[str, ShardedVariable]

    def write(self, host: int) -> int | None:
        """Writes this host's file, and returns its seal, or `None` without shards."""
        own = dict(self._parts(host))
        if not own:
            return None
        described = {
            key: Stored(box.shape, self.variables[path].dtype)
            for key, (path, box) in own.items()
        }
        values = (
            (key, np.asarray(self.variables[path].part(box), order="C"))
            for key, (path, box) in own.items()
        )
        paths.make_directory(os.path.dirname(self.saved.prefix))
        return write_file(self._file(host), described, values, self.saved.token)

    def sharded(self, seals: list[int | None]) -> dict[str, Sharded]:
        """Returns the locations of shards for the main file, from the seals by host."""
        found: dict[str, list[Shard]] = {path: [] for path in self.variables}
        for host in self._writers:
            parts = dict(self._parts(host))
            keys = encoding.keys(parts)
            name = os.path.basename(self._file(host))
            for part, (path, box) in parts.items():
                seal = seals[host]
                if seal is None:
                    raise RuntimeError(f"Host {host} must have written its shards.")
                found[path].append(Shard(box, name, keys[part], seal))
        return {
            path: Sharded(each.shape, each.dtype, tuple(found[path]))
            for path, each in self.variables.items()
        }

    @property
    def _writers(self) -> list[int]:
        """The hosts that have shards to write."""
        return sorted(
            {h for each in self.variables.values() for h in each.hosts.values()}
        )

    def _file(self, host: int) -> str:
        writers = self._writers
        return self.saved.named(f"shard-{writers.index(host)}-of-{len(writers)}")

    def _parts(self, host: int) -> Iterator[tuple[str, tuple[str, IndexRanges]]]:
        """Yields the name, variable and box of each shard in a host's file."""
        for path, variable in sorted(self.variables.items()):
            for box, owner in sorted(variable.hosts.items()):
                if owner == host:
                    start = "_".join(map(str, box.start))
                    yield f"{path}/{start}", (path, box)
