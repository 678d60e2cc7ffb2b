"""Inputs that the cores of a replica share, such as large images."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax

from keras_tpu_estimator.engine.inputs.unbatched import is_unbatched
from keras_tpu_estimator.ground.base.types import Features, Labels, Nest

Cut: TypeAlias = Callable[[Any, Sequence[int]], Any]


def partitioned(
    dims: Sequence[Nest],
    cores: int,
    cut: Cut,
    features: Features,
    labels: Labels,
) -> tuple[Features, Labels]:
    """Has the cores of a replica share its features and labels.

    Args:
        dims: The value of `TPUConfig.input_partition_dims`.
        cores: Cores of a replica.
        cut: Given a tensor and into how many parts each of its dimensions is
            to be cut, has the cores share it so.
        features: Nest of tensors.
        labels: The same, or `None`.

    Raises:
        ValueError: The dims do not fit the features or the labels.
    """
    of_features, *rest = dims
    shared = _split("features", of_features, cores, cut, features)
    if not rest or rest[0] is None or labels is None:
        return shared, labels
    return shared, _split("labels", rest[0], cores, cut, labels)


def _split(name: str, dims: Nest, cores: int, cut: Cut, nest: Nest) -> Nest:
    marked, structure = jax.tree_util.tree_flatten_with_path(nest, is_unbatched)
    counts = _as_in(structure, name, dims, nest)
    parts = []
    for (path, leaf), count in zip(marked, counts, strict=True):
        if count is not None:
            _check(name + jax.tree_util.keystr(path), leaf, count, cores)
            leaf = cut(leaf, count)
        parts.append(leaf)
    return jax.tree.unflatten(structure, parts)


def _as_in(structure: Any, name: str, dims: Nest, nest: Nest) -> list[Any]:
    """The dims of each tensor of a nest."""
    try:
        counts: list[Any] = structure.flatten_up_to(dims)
    except ValueError as error:
        raise ValueError(
            f"`input_partition_dims` should have the structure of the {name}, "
            f"with a list of int or None for each tensor. Received: {dims!r} "
            f"for {jax.tree.map(lambda leaf: leaf.shape, nest)}. {error}"
        ) from error
    return counts


def _check(name: str, leaf: Any, count: Any, cores: int) -> None:
    """Checks into how many parts a tensor is to be cut."""
    received = f"Received: {count!r} for {name}"
    if (
        not isinstance(count, list | tuple)
        or is_unbatched(leaf)
        or not all(isinstance(each, int) and each >= 1 for each in count)
    ):
        raise ValueError(
            "`input_partition_dims` should be None for a tensor that cores "
            "have whole, or a list with the number of parts, 1 or more, of "
            f"each dimension. {received}."
        )
    if len(count) != len(leaf.shape):
        raise ValueError(
            "`input_partition_dims` should have a number of parts for each "
            f"dimension. {received}, of shape {leaf.shape}."
        )
    if math.prod(count) not in (1, cores):
        raise ValueError(
            "The numbers of parts of a tensor should multiply to "
            f"num_cores_per_replica={cores}, or to 1. {received}."
        )
