"""Steps of data on the host."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self, TypeAlias

import jax
import numpy as np

from keras_tpu_estimator.engine.inputs.other_libraries import (
    array_of_torch,
    is_of_torch,
)
from keras_tpu_estimator.engine.inputs.unbatched import (
    Unbatched,
    batch_size,
    is_unbatched,
    named_leaves,
)
from keras_tpu_estimator.ground.base.shown import shown
from keras_tpu_estimator.ground.base.types import Features, Labels, Nest

PairOf: TypeAlias = Callable[[Any], tuple[Features, Labels]]


def pair_of(value: Any) -> tuple[Features, Labels]:
    """The features and the labels in what an `input_fn` returned or yielded.

    Args:
        value: A pair of features and labels, which is any tuple or list of
            two, a named one too; or features alone.

    Raises:
        ValueError: It is a tuple or list of another length.

    Example:

    >>> pair_of({"x": 1}), pair_of(({"x": 1}, 2))
    (({'x': 1}, None), ({'x': 1}, 2))
    """
    if not isinstance(value, tuple | list):
        return value, None
    if len(value) != 2:
        advice = (
            "Put weights of examples among the features, where model_fn "
            "multiplies the losses by them; estimators of `from_keras` take "
            "triples."
            if len(value) == 3
            else "Put several features into a dict."
        )
        raise ValueError(
            "`input_fn` should return (or yield) a tuple of length 2, "
            "features and labels, or features alone. Received a "
            f"{type(value).__name__} of length {len(value)}. {advice}"
        )
    features, labels = value
    return features, labels


@dataclasses.dataclass(frozen=True)
class Batch:
    """One step's features and labels, or a part of them for some cores.

    Attributes:
        features: Nest of NumPy arrays, batch first, and of `Unbatched` ones.
        labels: The same, or `None`.
    """

    features: Features
    labels: Labels

    @classmethod
    def of(cls, value: Any, pair_of: PairOf = pair_of) -> Self:
        """A batch as an `input_fn` returned or yielded it, in NumPy arrays.

        Args:
            value: What it returned.
            pair_of: Returns the features and the labels in it. Defaults to
                `pair_of`.

        Raises:
            ValueError: It is a tuple or list of another length, or empty, or
                as `as_arrays`.
        """
        features, labels = pair_of(value)
        batch = cls(as_arrays(features), as_arrays(labels, "labels"))
        if not jax.tree.leaves(batch.features):
            raise ValueError(
                "`input_fn` should return at least one feature. Received: "
                f"{shown(batch.features)}. Return features that are arrays, or "
                "a dict of arrays."
            )
        return batch

    @property
    def leaves(self) -> list[tuple[str, np.ndarray]]:
        """All arrays with names such as `features['image']`."""
        return _named(self.features, self.labels)

    @property
    def size(self) -> int:
        """Length of the batch."""
        return batch_size((self.features, self.labels))

    @property
    def signature(self) -> Any:
        """Equal for examples of one structure, with equal shapes and dtypes."""
        leaves, structure = jax.tree.flatten((self.features, self.labels))
        return structure, *((leaf.shape, leaf.dtype) for leaf in leaves)

    def sharing(self, names: Collection[str]) -> Self:
        """The same with the arrays of these names marked as shared."""
        return _sharing(self, names)

    def copied(self) -> Self:
        """The same in arrays of its own."""
        return type(self)(*jax.tree.map(np.array, (self.features, self.labels)))

    def repeated(self, steps: int, may_stay: bool = False) -> "StackedSteps":
        """The same step again and again, without a copy.

        Args:
            may_stay: As in `StackedSteps`. Defaults to `False`.
        """

        def repeat(leaf: np.ndarray) -> np.ndarray:
            if steps == 1:
                return leaf[None]
            return np.broadcast_to(leaf, (steps, *leaf.shape))

        nest = self.features, self.labels
        features, labels = jax.tree.map(repeat, nest)
        return StackedSteps(features, labels, may_stay)


@dataclasses.dataclass(frozen=True)
class StackedSteps:
    """Some steps of equal shapes, stacked.

    Attributes:
        features: Nest of NumPy arrays of shape `[steps, batch, ...]`, and of
            `Unbatched` ones of shape `[steps, ...]`.
        labels: The same, or `None`.
        may_stay: Whether nothing changes the arrays any more. Defaults to
            `False`.
        room: The features and labels of more steps, some of which are these;
            or `None`.
        place: The place of the first of these in `room`. Defaults to 0.
    """

    features: Features
    labels: Labels
    may_stay: bool = False
    room: tuple[Features, Labels] | None = dataclasses.field(default=None, repr=False)
    place: int = 0

    @classmethod
    def joined(cls, parts: Sequence["StackedSteps"]) -> Self:
        """The steps of several batches, one after the other."""
        nests = [(stacked.features, stacked.labels) for stacked in parts]
        return cls(*jax.tree.map(lambda *a: np.concatenate(a), *nests))

    @property
    def leaves(self) -> list[tuple[str, np.ndarray]]:
        """All arrays with names such as `features['image']`."""
        return _named(self.features, self.labels)

    @property
    def steps(self) -> int:
        """Number of steps."""
        return jax.tree.leaves(self.features)[0].shape[0]

    @property
    def examples(self) -> int:
        """Examples in one step."""
        return batch_size((self.features, self.labels), axis=1)

    @property
    def shapes(self) -> Any:
        """Equal for steps that can be stacked together."""
        leaves, structure = jax.tree.flatten((self.features, self.labels))
        return structure, *(leaf.shape[1:] for leaf in leaves)

    @property
    def step_bytes(self) -> int:
        """Bytes of one step."""
        leaves = jax.tree.leaves((self.features, self.labels))
        return sum(leaf[0].nbytes for leaf in leaves)

    def sharing(self, names: Collection[str]) -> Self:
        """The same with the arrays of these names marked as shared."""
        return _sharing(self, names)

    def step(self, index: int) -> Batch:
        """One of the steps."""
        part = jax.tree.map(lambda a: a[index], (self.features, self.labels))
        return Batch(*part)

    def split(self, steps: int) -> tuple["StackedSteps", "StackedSteps"]:
        """The first so many steps, and the others."""
        first, rest = self._part(slice(steps)), self._part(slice(steps, None))
        room = self.room or (self.features, self.labels)
        return dataclasses.replace(first, room=room), rest

    def padded_to(self, steps: int) -> Nest:
        """Features and labels of shape `[steps, ...]`, the first of which are
        these, and the others anything.

        Args:
            steps: At least as many as there are.
        """
        nest = self.features, self.labels
        if self.steps == steps:
            return nest
        if self.room and len(jax.tree.leaves(self.room)[0]) >= steps:
            return jax.tree.map(lambda a: a[:steps], self.room)

        def padded(leaf: np.ndarray) -> np.ndarray:
            whole = np.zeros((steps, *leaf.shape[1:]), leaf.dtype)
            whole[: self.steps] = leaf
            return whole

        return jax.tree.map(padded, nest)

    def _part(self, steps: slice) -> "StackedSteps":
        nest = self.features, self.labels
        features, labels = jax.tree.map(lambda a: a[steps], nest)
        return StackedSteps(features, labels, self.may_stay)


def _named(features: Features, labels: Labels) -> list[tuple[str, np.ndarray]]:
    return [
        (name, leaf.value if is_unbatched(leaf) else leaf)
        for name, leaf in named_leaves(features, labels)
    ]


def _sharing(steps: Any, names: Collection[str]) -> Any:
    if not names:
        return steps
    leaves = [Unbatched(leaf) if name in names else leaf for name, leaf in steps.leaves]
    structure = jax.tree.structure((steps.features, steps.labels))
    return type(steps)(*jax.tree.unflatten(structure, leaves))


def as_arrays(nest: Any, name: str = "features") -> Nest:
    """A nest of what NumPy understands as one of its arrays.

    Args:
        nest: Any nest. Mappings that are no dicts, such as those of tokenizers,
            become dicts.
        name: The name of the nest in errors. Defaults to 'features'.

    Returns:
        A nest of arrays, whose bytes are in the order of this machine.

    Raises:
        ValueError: The keys of a dict have no order, values are masked, or a
            list has numbers of Python in it.

    Example:

    >>> import collections
    >>> as_arrays(collections.UserDict(x=[np.array([1, 2], ">i4")]))
    {'x': [array([1, 2], dtype=int32)]}
    """

    def one(path: Any, leaf: Any) -> Nest:
        if isinstance(leaf, Mapping):
            return as_arrays(dict(leaf), name + jax.tree_util.keystr(path))
        if isinstance(leaf, np.ma.MaskedArray):
            _check_not_masked(leaf)
        if _is_list_of_numbers(leaf):
            raise ValueError(
                "`input_fn` must give arrays. Received a list of numbers as "
                f"`{name}{jax.tree_util.keystr(path)}`, which would be "
                f"{len(leaf)} tensors without a batch: {shown(leaf)}. Return "
                "numpy.asarray of it; a dataset of Hugging Face gives arrays "
                "after with_format('numpy')."
            )
        array = array_of_torch(leaf) if is_of_torch(leaf) else np.asarray(leaf)
        if array.dtype.isnative:
            return array
        return array.astype(array.dtype.newbyteorder("="))

    try:
        return jax.tree_util.tree_map_with_path(one, nest, is_leaf=_is_list_of_numbers)
    except ValueError as error:
        _check_keys(nest, error)
        raise


def _is_list_of_numbers(value: Any) -> bool:
    """Whether a value is a list of numbers, or of such lists.

    Example:

    >>> _is_list_of_numbers([[1], [2.5]]), _is_list_of_numbers([np.ones(3)])
    (True, False)
    """
    is_list = isinstance(value, list) and bool(value)
    return is_list and all(
        isinstance(each, int | float | np.generic) or _is_list_of_numbers(each)
        for each in value
    )


def _check_not_masked(array: np.ma.MaskedArray) -> None:
    masked = int(np.ma.getmaskarray(array).sum())
    if masked:
        raise ValueError(
            "An array of `input_fn` should have all its values, as devices "
            f"know of no masks. Received one of shape {array.shape} with "
            f"{masked} of {array.size} values masked. Fill them by "
            "array.filled(...), and pass the mask as another feature if it is "
            "needed."
        )


def _check_keys(nest: Any, cause: Exception) -> None:
    """Checks that the keys of each dict can be sorted, as JAX sorts them."""
    if isinstance(nest, list | tuple):
        for each in nest:
            _check_keys(each, cause)
    if not isinstance(nest, Mapping):
        return
    try:
        sorted(nest)
    except TypeError:
        kinds = sorted({type(key).__name__ for key in nest})
        raise ValueError(
            "The keys of a dict that `input_fn` gives should be of one type. "
            f"Received keys of {', '.join(kinds)}: {list(nest)}. Use strings."
        ) from cause
    for each in nest.values():
        _check_keys(each, cause)
