"""A batch on the host: the features and labels of one step."""

import dataclasses
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self, TypeAlias

import jax
import numpy as np

from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import Features, Labels, PyTree
from keras_tpu_estimator.engine.inputs.other_libraries import (
    array_of_torch,
    is_of_torch,
)
from keras_tpu_estimator.engine.inputs.unbatched import (
    Unbatched,
    batch_size,
    is_unbatched,
    map_batched,
    named_arrays,
    named_leaves,
)

PairOf: TypeAlias = Callable[[Any], tuple[Features, Labels]]


def pair_of(value: Any) -> tuple[Features, Labels]:
    """Returns the features and labels of a value that `input_fn` produced."""
    if not isinstance(value, tuple | list):
        return value, None
    if len(value) != 2:
        advice = (
            "Put weights of examples among the features, and multiply the "
            "losses by them in model_fn. Only estimators of `from_keras` accept "
            "triples."
            if len(value) == 3
            else "Put several features into a dict."
        )
        raise ValueError(
            "`input_fn` must return or yield a tuple of length 2, "
            "features and labels, or only features. Received a "
            f"{type(value).__name__} of length {len(value)}. {advice}"
        )
    features, labels = value
    return features, labels


@dataclasses.dataclass(frozen=True)
class Tensors:
    """Features and labels: pytrees of NumPy arrays, and of `Unbatched` ones.

    Labels may be `None`.
    """

    features: Features
    labels: Labels

    @property
    def tensors(self) -> tuple[Features, Labels]:
        """Features and labels as one pytree."""
        return self.features, self.labels

    @property
    def leaves(self) -> list[tuple[str, np.ndarray]]:
        """All arrays, with names such as `features['image']`."""
        return named_arrays(self.features, self.labels)

    def sharing(self, names: Collection[str]) -> Self:
        """Returns a copy with the arrays of these names marked as shared."""
        names = {*names} - unbatched_by_host(self.features) if names else names
        if not names:
            return self
        leaves = [Unbatched(a) if name in names else a for name, a in self.leaves]
        structure = jax.tree.structure(self.tensors)
        features, labels = jax.tree.unflatten(structure, leaves)
        return dataclasses.replace(self, features=features, labels=labels)


@dataclasses.dataclass(frozen=True)
class Batch(Tensors):
    """One step's features and labels, batch first, or a part of them for some cores."""

    @classmethod
    def from_value(cls, value: Any, pair_of: PairOf = pair_of) -> Self:
        """Returns a value of `input_fn` as a batch of NumPy arrays, after checks."""
        features, labels = pair_of(value)
        batch = cls(as_arrays(features), as_arrays(labels, "labels"))
        if not jax.tree.leaves(batch.features):
            raise ValueError(
                "`input_fn` must return at least one feature. Received: "
                f"{shown(batch.features)}. Return features that are arrays, or "
                "a dict of arrays."
            )
        return batch

    @property
    def size(self) -> int:
        """The number of examples."""
        return batch_size(self.tensors)

    @property
    def signature(self) -> Any:
        """A key that is equal for batches of equal structure, shapes and dtypes."""
        leaves, structure = jax.tree.flatten(self.tensors)
        return structure, *[(leaf.shape, leaf.dtype) for leaf in leaves]

    def copied(self) -> Self:
        """Returns a copy with copied arrays."""
        return type(self)(*jax.tree.map(np.array, self.tensors))


def as_arrays(tree: Any, name: str = "features") -> PyTree:
    """Returns a pytree of array-like values as NumPy arrays in native byte order.

    Mappings that are not dicts, such as those of tokenizers, become dicts. It raises
    `ValueError` if the keys of a dict have no order, if values are masked, or if a list
    contains Python numbers. Errors contain the `name` of the pytree.
    """

    def one(path: Any, leaf: Any) -> PyTree:
        if type(leaf) is np.ndarray and leaf.dtype.isnative:
            return leaf  # The most frequent case.
        if isinstance(leaf, Mapping):
            return as_arrays(dict(leaf), name + jax.tree_util.keystr(path))
        if isinstance(leaf, np.ma.MaskedArray):
            _check_not_masked(leaf)
        if _is_list_of_numbers(leaf):
            raise ValueError(
                "`input_fn` must return arrays. Received a list of numbers as "
                f"`{name}{jax.tree_util.keystr(path)}`, which would be "
                f"{len(leaf)} tensors without a batch: {shown(leaf)}. Return "
                "numpy.asarray of it. A Hugging Face dataset returns arrays "
                "after with_format('numpy')."
            )
        array = array_of_torch(leaf) if is_of_torch(leaf) else np.asarray(leaf)
        if array.dtype.isnative:
            return array
        return array.astype(array.dtype.newbyteorder("="))

    try:
        return jax.tree_util.tree_map_with_path(one, tree, is_leaf=_is_list_of_numbers)
    except ValueError as error:
        _check_keys(tree, error)
        raise


def _is_list_of_numbers(value: Any) -> bool:
    """Returns whether a value is a list of numbers, or of such lists."""
    is_list = isinstance(value, list) and bool(value)
    return is_list and all(
        isinstance(item, int | float | np.generic) or _is_list_of_numbers(item)
        for item in value
    )


def _check_not_masked(array: np.ma.MaskedArray) -> None:
    masked = int(np.ma.getmaskarray(array).sum())
    if masked:
        raise ValueError(
            "An array of `input_fn` must have no masked values, because devices "
            f"do not support masks. Received one of shape {array.shape} with "
            f"{masked} of {array.size} values masked. Fill them with "
            "array.filled(...), and pass the mask as another feature if "
            "model_fn needs it."
        )


def _check_keys(tree: Any, cause: Exception) -> None:
    """Checks that the keys of each dict can be sorted, as JAX sorts them."""
    if isinstance(tree, list | tuple):
        for item in tree:
            _check_keys(item, cause)
    if not isinstance(tree, Mapping):
        return
    try:
        sorted(tree)
    except TypeError:
        kinds = sorted({type(key).__name__ for key in tree})
        raise ValueError(
            "The keys of a dict from `input_fn` must have one type. "
            f"Received keys of {', '.join(kinds)}: {list(tree)}. Use strings."
        ) from cause
    for item in tree.values():
        _check_keys(item, cause)


def pad(tree: PyTree, size: int) -> tuple[PyTree, np.ndarray]:
    """Pads a batch to `size` with zeros, and returns a mask `[size]` of the padding."""
    present = batch_size(tree)
    is_padding = np.arange(size) >= present
    if present == size:
        return tree, is_padding

    def padded(leaf: np.ndarray) -> np.ndarray:
        zeros = np.zeros((size - present, *leaf.shape[1:]), leaf.dtype)
        return np.concatenate([leaf, zeros])

    return map_batched(padded, tree), is_padding


@jax.tree_util.register_pytree_with_keys_class
class Hosted:
    """The tensors of one batch, by name, that the host has computed for a step.

    They replace the user's features and labels. To JAX, they are a pytree of
    the tensors. A program may have several parts that compute them, such as one for
    each batch size.
    """

    def __init__(self, tensors: Mapping[str, Any], part: Any):
        self.tensors = dict(tensors)
        self.part = part

    def tree_flatten_with_keys(self) -> tuple[list[Any], Any]:
        """Returns the tensors with their names, and the names with the part."""
        key = jax.tree_util.DictKey
        leaves = [(key(name), value) for name, value in self.tensors.items()]
        return leaves, self._aux()

    def tree_flatten(self) -> tuple[list[Any], Any]:
        """Returns the tensors, and their names with the part."""
        return [*self.tensors.values()], self._aux()

    def _aux(self) -> tuple[tuple[str, ...], weakref.ref[Any]]:
        # JAX keeps structures until the process ends, and a part holds a graph.
        return tuple(self.tensors), weakref.ref(self.part)

    @classmethod
    def tree_unflatten(cls, aux: Any, leaves: Any) -> "Hosted":
        """Returns the same batch with other tensors."""
        names, part = aux
        return cls(dict(zip(names, leaves, strict=True)), part())


def tensors_of(features: PyTree) -> PyTree:
    """Returns features; those of `Hosted` without the part that computed them."""
    return features.tensors if isinstance(features, Hosted) else features


def unbatched_by_host(features: PyTree) -> set[str]:
    """Returns the names of the tensors without a batch axis that the host computed."""
    if not isinstance(features, Hosted):
        return set()
    return {name for name, leaf in named_leaves(features, None) if is_unbatched(leaf)}
