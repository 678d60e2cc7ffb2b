"""An open HDF5 file with an intact structure."""

import contextlib
import dataclasses
import io
import math
from collections.abc import Iterator, Mapping

import h5py
import numpy as np

from keras_tpu_estimator.base.common.index_ranges import IndexRanges, boxes_of_run
from keras_tpu_estimator.base.storage.transfers import local_copy
from keras_tpu_estimator.files.atomic import checksum, pieces
from keras_tpu_estimator.files.formats.hdf5 import encoding
from keras_tpu_estimator.files.formats.reader import VariableNotFoundError

# The errors that HDF5 and h5py raise for corrupt structures.
_DAMAGE = (OSError, RuntimeError, KeyError, pieces.CorruptPieceError)
_OTHERS = (VariableNotFoundError, FileNotFoundError, PermissionError)


class CorruptFileError(Exception):
    """A file has changed since it was written; the message gives the reason."""


@dataclasses.dataclass(frozen=True)
class OpenedFile:
    """An open file with an intact structure.

    It can be read to the end even if its name is removed meanwhile.

    Attributes:
        path: The file's path.
        descriptor: The open file.
        file: The same file, opened by HDF5.
        written: The pieces of its data, by offset.
    """

    path: str
    descriptor: int
    file: h5py.File
    written: Mapping[int, pieces.Piece]

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
                extents.append(pieces.Extent.of(offset, arrays[path]))
            else:
                # The dataset is empty or of another program, and was checked
                # with the structure. h5py returns a scalar as a NumPy number in
                # the machine's byte order.
                arrays[path] = np.asarray(dataset[()], dataset.dtype)
        pieces.read(self.descriptor, extents, self.written)
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
        found = np.empty(box.shape, dataset.dtype)
        for first, run in self._runs_in(dataset, offset, box):
            for at, part in boxes_of_run(first, first + run.size, dataset.shape):
                cut = part.within(box)
                if cut.is_empty:
                    continue
                start = at - first
                content = run[start : start + math.prod(part.shape)]
                found[cut.seen_from(box).slices] = content.reshape(part.shape)[
                    cut.seen_from(part).slices
                ]
        return encoding.decode(path, dataset, found)

    def _runs_in(
        self, dataset: h5py.Dataset, offset: int, box: IndexRanges
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the content of the pieces that overlap a box.

        Yields:
            The number of the first element, and the elements, in memory that
            the next
            ones overwrite.
        """
        itemsize = dataset.dtype.itemsize
        at, end = offset, offset + dataset.nbytes
        while at < end:
            piece = self.written.get(at)
            if piece is None or not 0 < piece.length <= end - at:
                raise pieces.CorruptPieceError(at)
            first = (at - offset) // itemsize
            count = piece.length // itemsize
            if any(
                not part.within(box).is_empty
                for _, part in boxes_of_run(first, first + count, dataset.shape)
            ):
                for before, chunk in pieces.chunks(self.descriptor, piece):
                    run = np.frombuffer(chunk, dataset.dtype)
                    yield first + before // itemsize, run
            at += piece.length


def held(path: str) -> io.FileIO:
    """Opens a file, or a local copy of a URL; it may be removed afterwards."""
    return open(local_copy(path).path, "rb", buffering=0)


@contextlib.contextmanager
def opened_file(path: str, raw: io.FileIO) -> Iterator[OpenedFile]:
    """Opens a file with an intact structure.

    Args:
        path: The path or URL, for messages.
        raw: The file from `held`.

    Raises:
        CorruptFileError: The structure is corrupt, or data read in the block
            are.
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
