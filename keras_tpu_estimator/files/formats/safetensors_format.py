"""Reader of the '.safetensors' files of Hugging Face's libraries."""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from keras_tpu_estimator.base.common.index_ranges import IndexRanges
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.base.storage.parsing import parsing
from keras_tpu_estimator.base.storage.transfers import local_copy
from keras_tpu_estimator.files.formats.reader import CheckpointReader, StoredVariable

SUFFIX = ".safetensors"
INDEX = ".safetensors.index.json"
# The files that these libraries expect in a directory.
_NAMES = ("model" + INDEX, "model" + SUFFIX)
_WEIGHT_MAP = "weight_map"
_DTYPES = {
    "BOOL": np.dtype("bool"),
    **{
        f"{kind}{bits}": np.dtype(f"{name}{bits}")
        for kind, name in (("I", "int"), ("U", "uint"))
        for bits in (8, 16, 32, 64)
    },
    **{f"F{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "C64": np.dtype("complex64"),
}
# A file begins with the size of its header, which is JSON.
_HEADER_SIZE = 8
# A function that returns an array of a file by name.
_Stored: TypeAlias = Callable[[str], np.ndarray]


def exists(path: str) -> bool:
    """Returns whether a path is an existing file or index of safetensors."""
    return path.endswith((SUFFIX, INDEX)) and paths.is_file(path)


def in_directory(directory: str) -> str | None:
    """Returns the file, or the index, in the directory of a model."""
    files = (os.path.join(directory, name) for name in _NAMES)
    return next(filter(paths.is_file, files), None)


class SafetensorsReader(CheckpointReader):
    """A reader of arrays by name, in one file or in the files of an index."""

    def __init__(self, path: str):
        weight_map = _weight_map(path) if path.endswith(INDEX) else None
        files = {path} if weight_map is None else {*weight_map.values()}
        # The file of each array.
        self._files: dict[str, str] = {}
        listed: dict[str, StoredVariable] = {}
        for file in sorted(files):
            described = _described(file)
            for name in described:
                if weight_map is None or weight_map.get(name) == file:
                    self._files[name] = file
            listed |= described
        lost = sorted((weight_map or {}).keys() - self._files.keys())
        if lost:
            raise ValueError(
                f"The index {path!r} names arrays that its files lack: {lost}. "
                "Copy all of them again."
            )
        super().__init__(path, {name: listed[name] for name in self._files})

    def _read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        arrays = {}
        for path in {self._files[name] for name in names}:
            with _opened(path) as (_, stored):
                for name in names:
                    if self._files[name] == path:
                        arrays[name] = np.array(stored(name))
        return arrays

    def _read_part(self, name: str, box: IndexRanges) -> np.ndarray:
        with _opened(self._files[name]) as (_, stored):
            return np.array(stored(name)[box.slices])


def _weight_map(path: str) -> dict[str, str]:
    """Returns the files of an index, by the names of arrays."""
    content = (
        f"be an index of safetensors files: JSON with a {_WEIGHT_MAP!r} from names "
        "of arrays to files beside it"
    )
    with (
        parsing(path, content, "Copy it again if it is a copy."),
        paths.opened(path) as file,
    ):
        names = {**json.load(file)[_WEIGHT_MAP]}
        _check_beside(names.values())
    directory = os.path.dirname(path)
    return {name: os.path.join(directory, file) for name, file in names.items()}


def _check_beside(files: Iterable[str]) -> None:
    for file in files:
        if os.path.basename(file) != file or not file.endswith(SUFFIX):
            raise ValueError(f"no file beside it: {file!r}")


def _described(path: str) -> dict[str, StoredVariable]:
    with _opened(path) as (file, _):
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        described = {
            name: (tuple(one.get_shape()), one.get_dtype())
            for name, one in slices.items()
        }
    for name, (_, dtype) in described.items():
        if dtype not in _DTYPES:
            raise ValueError(
                f"The array {name!r} of {path!r} must have one of the dtypes "
                f"{sorted(_DTYPES)}. Received: {dtype}, which NumPy lacks."
            )
    return {
        name: StoredVariable(shape, _DTYPES[dtype])
        for name, (shape, dtype) in described.items()
    }


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[Any, _Stored]]:
    """Opens a file, which safetensors checks, and maps its arrays."""
    try:
        import safetensors
    except ImportError as error:
        raise ImportError(
            f"Reading {path!r} needs safetensors, which is not installed "
            f"({error}). Run `pip install safetensors`."
        ) from error
    copy = local_copy(path)
    try:
        with safetensors.safe_open(copy.path, "numpy") as file:
            yield file, _mapped(copy.path)
    except FileNotFoundError as error:
        raise ValueError(
            f"The file {path!r} is missing. Copy all files of the model."
        ) from error
    except (safetensors.SafetensorError, ValueError) as error:
        raise ValueError(
            f"The file {path!r} is truncated or corrupt, or not a safetensors "
            f"file ({error}). Copy it again if it is a copy; otherwise use "
            "another one."
        ) from error


def _mapped(path: str) -> _Stored:
    """Returns the arrays of a checked file, as views of its bytes.

    The library's own NumPy reader lacks float8 and parts of empty arrays.
    """
    content = np.memmap(path, np.uint8, "r")
    start = _HEADER_SIZE + int.from_bytes(content[:_HEADER_SIZE], "little")
    header = json.loads(content[_HEADER_SIZE:start].tobytes())

    def stored(name: str) -> np.ndarray:
        entry = header[name]
        first, last = (start + offset for offset in entry["data_offsets"])
        array = content[first:last].view(_DTYPES[entry["dtype"]])
        return array.reshape(entry["shape"])

    return stored


def opened(path: str) -> SafetensorsReader | None:
    """Returns a reader if the files at a path have this format."""
    return SafetensorsReader(path) if exists(path) else None
