"""Reader of checkpoints in this package's own format."""

import contextlib
import dataclasses
import functools
import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Self

import h5py
import numpy as np

from keras_tpu_estimator.base.common.index_ranges import IndexRanges, boxes_of_run
from keras_tpu_estimator.base.storage.paths import is_url
from keras_tpu_estimator.base.storage.transfers import local_copy
from keras_tpu_estimator.files.atomic import checksum
from keras_tpu_estimator.files.directory import layouts, location
from keras_tpu_estimator.files.formats.hdf5 import encoding
from keras_tpu_estimator.files.formats.hdf5.encoding import Shard
from keras_tpu_estimator.files.formats.reader import (
    CheckpointReader,
    FileContent,
    StoredVariable,
    VariableNotFoundError,
    removed,
)

# The errors that HDF5 and h5py raise for corrupt structures.
_DAMAGE = (OSError, RuntimeError, KeyError, checksum.CorruptPieceError)
_OTHERS = (VariableNotFoundError, FileNotFoundError, PermissionError)


class CorruptFileError(Exception):
    """A file has changed since it was written; the message gives the reason."""


@dataclasses.dataclass(frozen=True)
class OpenedFile:
    """An open file with an intact structure, and the pieces of its data by offset.

    It can be read to the end even if its name is removed meanwhile. HDF5 has opened the
    same descriptor.
    """

    path: str
    descriptor: int
    file: h5py.File
    written: Mapping[int, checksum.Piece]

    @property
    def seal(self) -> int | None:
        """The result of `checksum.seal` for the file."""
        return checksum.seal(self.descriptor)

    def read(self, datasets: Mapping[str, h5py.Dataset]) -> dict[str, np.ndarray]:
        """Reads and checks datasets, by the paths of their variables."""
        arrays, extents = {}, []
        for path, dataset in datasets.items():
            encoding.check(path, dataset, self.path)
            offset = dataset.id.get_offset()
            if offset in self.written:
                arrays[path] = np.empty(dataset.shape, dataset.dtype)
                extents.append(checksum.Extent.from_array(offset, arrays[path]))
            else:
                # The dataset is empty or of another program, and was checked
                # with the structure. h5py returns a scalar as a NumPy number in
                # the machine's byte order.
                arrays[path] = np.asarray(dataset[()], dataset.dtype)
        checksum.read(self.descriptor, extents, self.written)
        return {
            path: encoding.decode(path, datasets[path], array)
            for path, array in arrays.items()
        }

    def read_box(
        self, path: str, dataset: h5py.Dataset, box: IndexRanges
    ) -> np.ndarray:
        """Reads and checks a part of the dataset of a variable."""
        offset = dataset.id.get_offset()
        if offset not in self.written or box.shape == dataset.shape:
            return self.read({path: dataset})[path][box.slices]
        encoding.check(path, dataset, self.path)
        array = np.empty(box.shape, dataset.dtype)
        for first, run in self._runs_in(dataset, offset, box):
            for at, part in boxes_of_run(first, first + run.size, dataset.shape):
                cut = part.within(box)
                if cut.is_empty:
                    continue
                start = at - first
                content = run[start : start + math.prod(part.shape)]
                array[cut.seen_from(box).slices] = content.reshape(part.shape)[
                    cut.seen_from(part).slices
                ]
        return encoding.decode(path, dataset, array)

    def _runs_in(
        self, dataset: h5py.Dataset, offset: int, box: IndexRanges
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the content of the pieces that overlap a box, in runs.

        A run is the number of its first element, and the elements, in memory that the
        next run overwrites.
        """
        itemsize = dataset.dtype.itemsize
        at, end = offset, offset + dataset.nbytes
        while at < end:
            piece = self.written.get(at)
            if piece is None or not 0 < piece.length <= end - at:
                raise checksum.CorruptPieceError(at)
            first = (at - offset) // itemsize
            count = piece.length // itemsize
            if any(
                not part.within(box).is_empty
                for _, part in boxes_of_run(first, first + count, dataset.shape)
            ):
                for before, chunk in checksum.chunks(self.descriptor, piece):
                    run = np.frombuffer(chunk, dataset.dtype)
                    yield first + before // itemsize, run
            at += piece.length


def unbuffered(path: str) -> io.FileIO:
    """Opens a file, or a local copy of a URL; it may be removed afterwards."""
    return open(local_copy(path).path, "rb", buffering=0)


@contextlib.contextmanager
def opened_file(path: str, raw: io.FileIO) -> Iterator[OpenedFile]:
    """Opens the file `raw` from `unbuffered`; `path` is its path or URL for messages.

    `CorruptFileError` is raised if the structure, or data read in the block, are
    corrupt.
    """
    written = checksum.load(raw.fileno())
    if written is None:
        raise CorruptFileError("its checksum is wrong or missing")
    # The same descriptor is used, because the name may refer to another file
    # now.
    with translated(), h5py.File(raw, "r") as file:
        yield OpenedFile(path, raw.fileno(), file, written)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Converts the errors that a corrupt file causes to `CorruptFileError`."""
    try:
        yield
    except _OTHERS:
        raise
    except _DAMAGE as error:
        raise CorruptFileError(str(error)) from error


class OpenedCheckpoint:
    """A checkpoint with an intact main file; `stack` closes the other files."""

    def __init__(
        self,
        path: str,
        main: OpenedFile,
        stack: contextlib.ExitStack,
    ):
        self._path = path
        self._main = main
        self._stack = stack
        self._datasets: dict[str, h5py.Dataset] = {}
        self._shards: dict[str, tuple[Shard, ...]] = {}
        self._shard_files: dict[str, OpenedFile] = {}
        self._raw_files: dict[str, io.FileIO] = {}

    def hold(self) -> None:
        """Opens all files, so that they can still be read after their removal.

        Files in an object store are not opened, because only those needed are fetched.
        """
        if is_url(self._path):
            return
        for name in encoding.seals_of(self._main.file):
            # Reading a missing file raises an error later.
            with contextlib.suppress(OSError):
                raw = unbuffered(self._beside(name))
                self._raw_files[name] = self._stack.enter_context(raw)

    def describe(self) -> dict[str, StoredVariable]:
        """Returns the shapes and dtypes of all variables, by path."""
        return {
            path: StoredVariable(dataset.shape, encoding.dtype_of(path, dataset))
            for path, dataset in _all(self._main.file).items()
        }

    def read_plain(self, paths: Iterable[str]) -> dict[str, np.ndarray] | None:
        """Reads variables that are stored under their own paths.

        This avoids listing all variables, which is slow for large models. The result is
        `None` if a variable is missing, or stored under another name.
        """
        datasets: dict[str, h5py.Dataset] = {}
        for path in paths:
            dataset = encoding.find_plain(self._main.file, path)
            if dataset is None:
                return None
            datasets[path] = dataset
        self._datasets |= datasets
        return self.read(datasets)

    def read(self, paths: Iterable[str]) -> dict[str, np.ndarray]:
        """Reads variables; a corrupt or missing shard file raises `ValueError`."""
        paths = list(paths)
        datasets = self._named(paths)
        datasets = {path: datasets[path] for path in paths}
        values = self._main.read(
            {p: dataset for p, dataset in datasets.items() if not dataset.is_virtual}
        )
        for path, dataset in datasets.items():
            if dataset.is_virtual:
                box = IndexRanges.from_shape(dataset.shape)
                values[path] = self._joined(path, dataset, box)
        return {path: values[path] for path in paths}

    def read_box(self, path: str, box: IndexRanges) -> np.ndarray:
        """Reads a part of a variable, with little else in memory."""
        dataset = self._named([path])[path]
        if dataset.is_virtual:
            return self._joined(path, dataset, box)
        return self._main.read_box(path, dataset, box)

    def _named(self, paths: list[str]) -> dict[str, h5py.Dataset]:
        """Returns at least the datasets of these variables."""
        if not self._datasets.keys() >= {*paths}:
            self._datasets |= _named(self._main.file, paths)
        if not self._datasets.keys() >= {*paths}:
            # The listed variables belong to another save.
            raise removed(self._path)
        return self._datasets

    def _joined(self, path: str, dataset: h5py.Dataset, box: IndexRanges) -> np.ndarray:
        """Returns a part of a variable, joined from overlapping shards."""
        if path not in self._shards:
            encoding.check(path, dataset, self._path)
            self._shards[path] = encoding.shards_of(dataset)
        joined = np.empty(box.shape, encoding.dtype_of(path, dataset))
        missing = joined.size
        for shard in self._shards[path]:
            cut = shard.box.within(box)
            if cut.is_empty:
                continue
            value = self._of_shard(path, shard, cut)
            if cut == box:
                return value
            joined[cut.seen_from(box).slices] = value
            missing -= value.size
        if missing:
            raise ValueError(
                f"The shards of the variable {path!r} in the checkpoint "
                f"{self._path!r} must cover all of it. Received shards that "
                f"lack {missing} numbers of {box}. Use a checkpoint that this "
                "package wrote."
            )
        return joined

    def _of_shard(self, path: str, shard: Shard, cut: IndexRanges) -> np.ndarray:
        try:
            file = self._shard_file(shard)
            with translated():
                dataset = file.file[shard.key]
                if dataset.shape != shard.box.shape:
                    raise CorruptFileError(f"it has shape {dataset.shape}")
                part = cut.seen_from(shard.box)
                return file.read_box(path, dataset, part)
        except (FileNotFoundError, CorruptFileError) as error:
            is_there = isinstance(error, CorruptFileError)
            if not is_there and self._is_gone:
                raise removed(self._path) from error
            reason = f"is corrupt ({error})" if is_there else "is missing"
            name = self._beside(shard.file)
            raise ValueError(
                f"The shard {shard.box} of the variable {path!r} must be in "
                f"the file {name!r}, which {reason}. It belongs to the "
                f"checkpoint {self._path!r}. Copy it again if that is a copy; "
                "otherwise delete the checkpoint and use another one. "
                f"{location.alternatives(self._path)}"
            ) from error

    def _shard_file(self, shard: Shard) -> OpenedFile:
        if shard.file not in self._shard_files:
            path = self._beside(shard.file)
            if shard.file not in self._raw_files:
                self._raw_files[shard.file] = self._stack.enter_context(
                    unbuffered(path)
                )
            raw = self._raw_files[shard.file]
            shard_file = self._stack.enter_context(opened_file(path, raw))
            if shard_file.seal != shard.seal:
                raise CorruptFileError("it belongs to another checkpoint")
            self._shard_files[shard.file] = shard_file
        return self._shard_files[shard.file]

    def _beside(self, name: str) -> str:
        return os.path.join(os.path.dirname(self._path), name)

    @property
    def _is_gone(self) -> bool:
        """Whether the checkpoint was removed or replaced."""
        try:
            with unbuffered(self._path) as now:
                return checksum.seal(now.fileno()) != self._main.seal
        except FileNotFoundError:
            return True


@contextlib.contextmanager
def opened(prefix: str) -> Iterator[OpenedCheckpoint]:
    """Opens a checkpoint, or raises `ValueError` if it was removed or is corrupt."""
    path = layouts.HDF5.main(prefix)
    try:
        with contextlib.ExitStack() as stack:
            try:
                raw = stack.enter_context(unbuffered(path))
            except FileNotFoundError as error:
                raise removed(path) from error
            main = stack.enter_context(opened_file(path, raw))
            yield OpenedCheckpoint(path, main, stack)
    except CorruptFileError as error:
        # On some network file systems, a file that another machine removes
        # disappears while it is open.
        if location.main_file(prefix) != path:
            raise removed(path) from error
        raise _corrupt_error(path, error) from error


def _named(file: h5py.File, paths: list[str]) -> dict[str, h5py.Dataset]:
    """Returns at least the existing datasets of these variables."""
    datasets = {path: encoding.find_plain(file, path) for path in paths}
    return _all(file) if None in datasets.values() else datasets


def _all(file: h5py.File) -> dict[str, h5py.Dataset]:
    """Returns all datasets by variable path."""
    datasets: dict[str, h5py.Dataset] = {}

    def collect(key: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            datasets[encoding.path_of(key, item)] = item

    # This does not follow links, which may lead to other files.
    file.visititems(collect)
    return datasets


def _corrupt_error(path: str, reason: str | Exception) -> ValueError:
    return ValueError(
        f"The checkpoint file {path!r} is truncated or corrupt, or was not "
        f"written by this package ({reason}). Copy it again if it is a copy; "
        "otherwise delete it and use another one. "
        f"{location.alternatives(path)}"
    )


class Hdf5Reader(CheckpointReader):
    """A reader of a checkpoint that this package wrote, with an intact main file."""

    def __init__(self, prefix: str):
        super().__init__(prefix, self._describe)
        self._opened: OpenedCheckpoint | None = None
        with opened(prefix):
            pass  # It exists and is intact.

    @contextlib.contextmanager
    def held_open(self) -> Iterator[Self]:
        """Keeps the files open in a `with` block."""
        if self._opened is not None:
            yield self
            return
        with opened(self.path) as self._opened:
            try:
                self._opened.hold()
                yield self
            finally:
                self._opened = None

    def _describe(self) -> dict[str, StoredVariable]:
        with self.held_open():
            return self._now_open.describe()

    def _read_unlisted(self, names: Sequence[str]) -> dict[str, np.ndarray] | None:
        with self.held_open():
            return self._now_open.read_plain(names)

    def _read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        with self.held_open():
            return self._now_open.read(names)

    def _read_part(self, name: str, box: IndexRanges) -> np.ndarray:
        with self.held_open():
            return self._now_open.read_box(name, box)

    @property
    def _now_open(self) -> OpenedCheckpoint:
        if self._opened is None:
            raise RuntimeError("The checkpoint must be open.")
        return self._opened


def contents(prefix: str) -> Iterator[FileContent]:
    """Yields the expected content of a checkpoint's files, the main file last.

    In this order, hosts that share the files read those that they have written. A
    corrupt main file raises `ValueError`, because the other files are then unknown.
    """
    main = layouts.HDF5.main(prefix)
    copy = local_copy(main)
    if checksum.load(copy.path) is None:
        raise ValueError(f"{main!r} is truncated or corrupt.")
    with h5py.File(copy.path, "r", locking=False) as file:
        seals = encoding.seals_of(file)
    for name, seal in sorted(seals.items()):
        path = os.path.join(os.path.dirname(prefix), name)
        yield FileContent((path,), functools.partial(_is_shard_file, path, seal), seal)
    yield FileContent((main,), functools.partial(checksum.is_right, main))


def _is_shard_file(path: str, seal: int) -> bool:
    """Returns whether a file is intact, and belongs to the checkpoint."""
    is_its = checksum.seal(local_copy(path).path) == seal
    return is_its and checksum.is_right(path)
