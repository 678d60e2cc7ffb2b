"""Variables of a model beside those of a checkpoint that they start from."""

import dataclasses
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from keras_tpu_estimator.files.formats.reader import CheckpointReader
from keras_tpu_estimator.files.warm_start.casting import cast
from keras_tpu_estimator.ground.base.index_ranges import IndexRanges


class Described(Protocol):
    """What has a shape and a dtype: a `keras.Variable`, say, or an array."""

    @property
    def shape(self) -> Sequence[int]:
        """Its dimensions."""

    @property
    def dtype(self) -> npt.DTypeLike:
        """Its dtype, or the name of it."""


class HasPath(Protocol):
    """What can be named by its path: a `keras.Variable`."""

    @property
    def path(self) -> str:
        """The path, such as 'dense/kernel'."""


@dataclasses.dataclass(frozen=True)
class Pairing:
    """A variable of a model, and the one that it starts from.

    Attributes:
        path: The variable's path in the model.
        shape: Its shape there.
        name: The name in the checkpoint.
        stored_shape: The shape in the checkpoint. None, the default, if it has
            no such variable.
    """

    path: str
    shape: tuple[int, ...]
    name: str
    stored_shape: tuple[int, ...] | None = None

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
    """Puts variables beside what they start from.

    Args:
        names: Names in the checkpoint by a variable's path.
        variables: What has a shape, by path; all of the model.
        stored: What has a shape, by the name in the checkpoint.

    Returns:
        A pairing for each of `names`, in their order.

    Example:

    >>> pairings({"a": "b"}, {"a": np.zeros(2)}, {"b": np.zeros(3)})
    [Pairing(path='a', shape=(2,), name='b', stored_shape=(3,))]
    """
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
    """Reads what variables start from, in their own dtypes.

    Args:
        reader: The checkpoint.
        pairs: The variables, all of them in the checkpoint.
        variables: What has a dtype, by path.

    Returns:
        Values by path, of the shapes in the checkpoint.

    Raises:
        ValueError: A value does not go into the variable's dtype, or the
            checkpoint is damaged.

    Example:

    >>> import tempfile
    >>> import keras_tpu_estimator as kte
    >>> prefix = kte.checkpoints.save(tempfile.mkdtemp(), 20, {"b": [1.0]})
    >>> variables = {"a": np.zeros(1, "float32")}
    >>> read_values(
    ...     kte.load_checkpoint(prefix), [Pairing("a", (1,), "b")], variables)
    {'a': array([1.], dtype=float32)}
    """
    pairs = list(pairs)
    read = reader.get_tensors(pair.name for pair in pairs)
    return {
        pair.path: cast(
            read[pair.name],
            np.dtype(variables[pair.path].dtype),
            pair.path,
            pair.name,
            reader.path,
        )
        for pair in pairs
    }


def read_part(
    reader: CheckpointReader,
    pair: Pairing,
    dtype: npt.DTypeLike,
    box: IndexRanges,
) -> np.ndarray:
    """Reads a part of what a variable starts from, in its own dtype.

    Args:
        reader: The checkpoint.
        pair: The variable, which is in the checkpoint.
        dtype: Its dtype.
        box: The part.

    Raises:
        ValueError: As for `read_values`.
    """
    value = reader.get_part(pair.name, box.slices)
    return cast(value, np.dtype(dtype), pair.path, pair.name, reader.path)
