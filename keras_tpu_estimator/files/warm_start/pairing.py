"""Variables of a model paired with the checkpoint's variables they start from.

The values of a checkpoint are cast to the dtypes of the model's variables.
Booleans, integers, floating-point and complex numbers can be cast to the same
or a later kind in this order, as far as `as_dtype` supports each value.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

import keras
import numpy as np
import numpy.typing as npt

from keras_tpu_estimator.base.common.dtype_changes import (
    as_dtype,
    first_misfit,
    kind_of,
)
from keras_tpu_estimator.base.common.index_ranges import IndexRanges
from keras_tpu_estimator.files.formats.reader import CheckpointReader

# Each kind can be cast to the later ones.
_KINDS = ("bool", "integral", "real", "complex")


def cast(
    value: np.ndarray, dtype: np.dtype, path: str, name: str, checkpoint: str
) -> np.ndarray:
    """Casts a value, or raises `ValueError` if the dtype cannot represent it."""
    result = converted(value, dtype, f"{name!r} in {checkpoint!r}")
    if result is not None:
        return result
    raise ValueError(
        f"The variable {path!r} must have a dtype that can hold the "
        f"{value.dtype} values of {name!r} in the checkpoint {checkpoint!r}. "
        f"Received: {dtype}. Change its dtype in model_fn, or do not start "
        "from this value: use another model_dir, or other names."
    )


def converted(value: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray | None:
    """Returns a value in another dtype, or `None` if that cannot represent it."""
    value = np.asarray(value)
    if value.dtype == dtype:
        return value
    if not can_hold(dtype, value.dtype) or (first_misfit(value, dtype) is not None):
        return None
    return np.asarray(as_dtype(value, dtype, name))


def can_hold(dtype: np.dtype, other: np.dtype) -> bool:
    """Returns whether a dtype's kind can hold numbers of another dtype."""
    kind, other_kind = kind_of(dtype), kind_of(other)
    if kind is None or other_kind is None:
        return False
    return _KINDS.index(other_kind) <= _KINDS.index(kind)


class Described(Protocol):
    """A value with a shape and a dtype, such as a `keras.Variable`."""

    @property
    def shape(self) -> Sequence[int]:
        """Its dimensions."""

    @property
    def dtype(self) -> npt.DTypeLike:
        """Its dtype, or the name of it."""


class HasPath(Protocol):
    """A value with a path, such as a `keras.Variable`."""

    @property
    def path(self) -> str:
        """The path, such as 'dense/kernel'."""


@dataclasses.dataclass(frozen=True)
class Pairing:
    """A variable of a model, and the checkpoint's variable it starts from.

    Attributes:
        path: The variable's path in the model.
        shape: Its shape in the model.
        name: The name in the checkpoint.
        stored_shape: The shape in the checkpoint. None, the default, if the
            variable is missing.
        factor: What the checkpoint's value is multiplied by. Defaults to 1.0; other
            numbers belong to the momentum of Keras's `SGD`.
    """

    path: str
    shape: tuple[int, ...]
    name: str
    stored_shape: tuple[int, ...] | None = None
    factor: float = 1.0

    @property
    def fits(self) -> bool:
        """Whether the checkpoint's shape is the model's."""
        return self.shape == self.stored_shape

    def __str__(self) -> str:
        return (
            f"{self.path!r} of shape {self.shape} from {self.name!r} of shape "
            f"{self.stored_shape}"
        )


def pairings(
    names: Mapping[str, str],
    variables: Mapping[str, Described],
    stored: Mapping[str, Described],
) -> list[Pairing]:
    """Pairs variables with those of `names` that they start from, in this order."""
    return [
        Pairing(
            path,
            tuple(variables[path].shape),
            name,
            tuple(stored[name].shape) if name in stored else None,
        )
        for path, name in names.items()
    ]


def read_values(
    reader: CheckpointReader,
    pairs: Iterable[Pairing],
    variables: Mapping[str, Described],
) -> dict[str, np.ndarray]:
    """Reads the values that variables start from, in the variables' dtypes.

    The checkpoint must contain all of them, and determines the shapes.
    """
    pairs = list(pairs)
    read = reader.get_tensors(pair.name for pair in pairs)
    return {
        pair.path: _started(
            pair, read[pair.name], variables[pair.path].dtype, reader.path
        )
        for pair in pairs
    }


def _started(
    pair: Pairing, value: np.ndarray, dtype: npt.DTypeLike, checkpoint: str
) -> np.ndarray:
    """Returns a value that a variable starts from, or a part of it."""
    value = cast(value, np.dtype(dtype), pair.path, pair.name, checkpoint)
    if pair.factor == 1.0:
        return value
    return np.asarray(value * pair.factor, value.dtype)


def read_part(
    reader: CheckpointReader,
    pair: Pairing,
    dtype: npt.DTypeLike,
    box: IndexRanges,
) -> np.ndarray:
    """Reads a part of the value that a variable starts from, as `read_values` does."""
    value = reader.get_part(pair.name, box.slices)
    return _started(pair, value, dtype, reader.path)


_HEADINGS = ("", "variable", "shape", "in the checkpoint", "shape there")


@dataclasses.dataclass(frozen=True)
class WarmStartReport:
    """A comparison of a model's variables with those of a checkpoint.

    Its `str` is a table.

    Attributes:
        checkpoint: The checkpoint.
        matched: Variables that start from it.
        missing: Selected variables that are not in it.
        mismatched: Selected variables that have another shape in it.
        unselected: Paths of variables that are not selected.
        unused: Names in it that no variable starts from.

    Example:

    >>> from keras_tpu_estimator.checkpoints import WarmStartReport
    >>> from keras_tpu_estimator.typing import Pairing
    >>> print(WarmStartReport(
    ...     "/model.ckpt-20", matched=(Pairing("a", (2,), "b", (2,)),),
    ...     unused=("c",)))
    Warm start from '/model.ckpt-20': 1 matched, 0 missing, 0 mismatched,
    0 unselected, 1 unused
               variable  shape  in the checkpoint  shape there
    matched    a         (2,)   b                  (2,)
    unused                      c
    """

    checkpoint: str
    matched: tuple[Pairing, ...] = ()
    missing: tuple[Pairing, ...] = ()
    mismatched: tuple[Pairing, ...] = ()
    unselected: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether all selected variables start from the checkpoint."""
        return not self.missing and not self.mismatched

    @property
    def summary(self) -> str:
        """The checkpoint and the number of variables of each kind, in one line."""
        kinds = ("matched", "missing", "mismatched", "unselected", "unused")
        counts = ", ".join(f"{len(getattr(self, kind))} {kind}" for kind in kinds)
        return f"Warm start from {self.checkpoint!r}: {counts}"

    def __str__(self) -> str:
        rows = [_HEADINGS, *self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        return "\n".join([self.summary, *lines])

    def _rows(self) -> list[tuple[str, ...]]:
        # Problems come first.
        kinds = ("missing", "mismatched", "matched")
        rows: list[tuple[str, ...]] = [
            (kind, pair.path, str(pair.shape), pair.name, _stored_shape(pair))
            for kind in kinds
            for pair in getattr(self, kind)
        ]
        rows += [("unselected", path, "", "", "") for path in self.unselected]
        rows += [("unused", "", "", name, "") for name in self.unused]
        return rows


def _stored_shape(pair: Pairing) -> str:
    return "none" if pair.stored_shape is None else str(pair.stored_shape)


@dataclasses.dataclass(frozen=True)
class Source:
    """The checkpoint and the name there of a variable's initial value."""

    reader: CheckpointReader
    name: str


@dataclasses.dataclass(frozen=True)
class Target:
    """A program's variables, and the sources of their initial values, by path;
    `constants` are paths that checkpoints of this package never contain.
    """

    variables: Mapping[str, keras.Variable]
    constants: Collection[str]
    sources: dict[str, Source]

    def values(
        self, paths: Iterable[str], dtype_of: Callable[[str], np.dtype]
    ) -> dict[str, np.ndarray]:
        """Returns the initial values of those variables that have a source; a
        variable's dtype must be able to represent its value.
        """
        names: dict[CheckpointReader, dict[str, str]] = {}
        for path in paths:
            if path in self.sources:
                source = self.sources[path]
                names.setdefault(source.reader, {})[path] = source.name
        values: dict[str, np.ndarray] = {}
        for reader, name_of in names.items():
            # All values are read at once, because each read checks the file.
            read = reader.get_tensors(set(name_of.values()))
            values |= {
                path: cast(read[name], dtype_of(path), path, name, reader.path)
                for path, name in name_of.items()
            }
        return values
