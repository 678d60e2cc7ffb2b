"""The checkpoint file: named variables in HDF5, followed by checksums."""

import dataclasses
import io
import os
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import TYPE_CHECKING

import h5py
import numpy as np
import numpy.typing as npt

from keras_tpu_estimator.files.atomic import checksum
from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.files.atomic import pieces
from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats.hdf5 import encoding
from keras_tpu_estimator.files.formats.hdf5.shards import Shard
from keras_tpu_estimator.files.formats.hdf5.shards import Sharded
from keras_tpu_estimator.files.formats.reader import Stored
from keras_tpu_estimator.ground.base.index_ranges import IndexRanges
from keras_tpu_estimator.ground.storage import paths

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


# HDF5 puts its structures together in blocks of so many bytes.
_STRUCTURE_BLOCK = 16 << 10


def write(
    saved: SaveFiles, variables: Mapping[str, npt.ArrayLike | Sharded]
) -> None:
    """Writes the main file of a save, whole or not at all.

    Args:
        saved: The files of the save.
        variables: Arrays of numbers or booleans by variable path. Whatever
            `np.asarray` understands will do. Of those whose parts are in
            other files, where they are.

    Raises:
        TypeError: A value is not an array of numbers.
        OSError: The disk is full, say.

    Example:

    >>> import os, tempfile
    >>> prefix = os.path.join(tempfile.mkdtemp(), "model.ckpt-3")
    >>> write(SaveFiles(prefix), {"dense/bias": np.zeros(2)})
    >>> with h5py.File(prefix + ".h5") as file:
    ...     file["dense/bias"]
    <HDF5 dataset "bias": shape (2,), type "<f8">
    """
    arrays = {
        name: each if isinstance(each, Sharded) else np.asarray(each, order="C")
        for name, each in variables.items()
    }
    values = (
        (name, each)
        for name, each in sorted(arrays.items())
        if not isinstance(each, Sharded)
    )
    path = saved.prefix + location.SUFFIX
    write_file(path, arrays, values, saved.token)


def write_file(
    path: str,
    variables: Mapping[str, np.ndarray | Stored | Sharded],
    values: Iterable[tuple[str, np.ndarray]],
    token: str,
) -> int:
    """Writes a file, whole or not at all, one value after the other.

    Args:
        path: The file to make or replace.
        variables: What will be in it, as for `encoding.lay_out`.
        values: The values of all arrays that are no scalars, by path.
        token: That of the save that the file belongs to.

    Returns:
        What `checksum.seal` gives for it.

    Raises:
        TypeError: A value is not an array of numbers.
        OSError: The disk is full, say.
    """
    with commit.replacing(path, is_kept=True) as partial:
        offsets = _write_structure(partial, variables)
        seal = checksum.append(
            partial,
            [
                piece
                for name, value in values
                if name in offsets
                for piece in pieces.write(
                    partial, [pieces.Extent.of(offsets[name], value)]
                )
            ],
            token,
        )
    return seal


def _write_structure(
    path: str, variables: Mapping[str, np.ndarray | Stored | Sharded]
) -> dict[str, int]:
    """Writes all but the data; returns where they belong, by path."""
    sparse = SparseFile()
    # The format of HDF5 1.10 is written in half the time of the oldest.
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
    """A variable whose parts lie on several cores.

    Attributes:
        shape: Its shape.
        dtype: The NumPy dtype that it is saved with.
        hosts: Its parts, and which host writes each.
        part: Gives one that this host writes.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    hosts: Mapping[IndexRanges, int]
    part: Callable[[IndexRanges], np.ndarray]


@dataclasses.dataclass(frozen=True)
class ShardFiles:
    """The files with parts of variables that belong to a checkpoint.

    All hosts know all of them.

    Attributes:
        saved: All files of the save.
        variables: The variables by path.

    Example:

    >>> import tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> from keras_tpu_estimator.files.checkpoints import saving
    >>> directory = tempfile.mkdtemp()
    >>> table = np.arange(8.0)
    >>> halves = {IndexRanges((0,), (4,)): 0, IndexRanges((4,), (8,)): 1}
    >>> saved = SaveFiles(os.path.join(directory, "model.ckpt-20"))
    >>> files = ShardFiles(
    ...     saved, {"table": ShardedVariable((8,), table.dtype, halves,
    ...                             lambda box: table[box.slices])})
    >>> seals = [files.write(host) for host in range(2)]
    >>> saving.save_into(
    ...     saved, 20, files.sharded(seals), retention=checkpoints.Retention())
    >>> checkpoints.read(saved.prefix)["table"]
    array([0., 1., 2., 3., 4., 5., 6., 7.])
    """

    saved: SaveFiles
    variables: Mapping[str, ShardedVariable]

    def write(self, host: int) -> int | None:
        """Writes the file of a host.

        Args:
            host: This one.

        Returns:
            What tells the file from others, for `sharded`. `None` if it has
            no parts to write.
        """
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
        """What the main file is to say of the variables.

        Args:
            seals: What `write` has returned, by host.
        """
        found: dict[str, list[Shard]] = {path: [] for path in self.variables}
        for host in self._writers:
            parts = dict(self._parts(host))
            keys = encoding.keys(parts)
            name = os.path.basename(self._file(host))
            for part, (path, box) in parts.items():
                seal = seals[host]
                if seal is None:
                    raise RuntimeError(f"Host {host} should have written.")
                found[path].append(Shard(box, name, keys[part], seal))
        return {
            path: Sharded(each.shape, each.dtype, tuple(found[path]))
            for path, each in self.variables.items()
        }

    @property
    def _writers(self) -> list[int]:
        """The hosts that have parts to write."""
        return sorted(
            {h for each in self.variables.values() for h in each.hosts.values()}
        )

    def _file(self, host: int) -> str:
        writers = self._writers
        return self.saved.part(writers.index(host), len(writers))

    def _parts(
        self, host: int
    ) -> Iterator[tuple[str, tuple[str, IndexRanges]]]:
        """What they are called in the file of a host, and what they are."""
        for path, variable in sorted(self.variables.items()):
            for box, owner in sorted(variable.hosts.items()):
                if owner == host:
                    start = "_".join(map(str, box.start))
                    yield f"{path}/{start}", (path, box)
