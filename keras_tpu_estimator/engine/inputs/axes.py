"""The axes that divide inputs: other batch axes than the first, and partitions.

`BatchAxes` moves the user's batch axes to the front and back. `partitioned` shards
large inputs, such as images, over the cores of a replica.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator.base.common.types import Features, Labels, PyTree
from keras_tpu_estimator.engine.inputs.batch import Batch
from keras_tpu_estimator.engine.inputs.unbatched import is_unbatched


@dataclasses.dataclass(frozen=True)
class BatchAxes:
    """The batch axis of each tensor, features first.

    Attributes:
        axes: The axis of each tensor, or `None` for the first axis of all.
        shares: The number of cores that must divide each batch evenly.
    """

    axes: Sequence[int] | None = None
    shares: int = 1

    def to_front(self, batch: Batch) -> Batch:
        """Moves the batch axes of an example to the front.

        Raises:
            ValueError: There are more or fewer tensors than axes, or a tensor
                cannot be split along its axis.
        """
        if self.axes is None:
            return batch
        leaves, structure = jax.tree.flatten((batch.features, batch.labels))
        # Prediction has no labels, so that some axes may be unused.
        excess = len(self.axes) - len(leaves)
        if excess < 0 or (excess and batch.labels is not None):
            raise ValueError(
                "`batch_axis` must have one axis for each tensor of features "
                f"and labels. Expected {len(leaves)}. Received "
                f"{len(self.axes)}: {list(self.axes)}. Add or remove axes."
            )
        for (name, leaf), axis in zip(batch.leaves, self.axes, strict=False):
            self._check_split(name, leaf, axis)
        moved = [
            np.moveaxis(leaf, axis, 0)
            for leaf, axis in zip(leaves, self.axes, strict=False)
        ]
        return Batch(*jax.tree.unflatten(structure, moved))

    def from_front(self, features: Features, labels: Labels) -> tuple[Features, Labels]:
        """Moves the batch axes of traced tensors back."""
        if self.axes is None:
            return features, labels
        leaves, structure = jax.tree.flatten((features, labels))
        moved = [
            jnp.moveaxis(leaf, 0, axis)
            for leaf, axis in zip(leaves, self.axes, strict=False)
        ]
        return jax.tree.unflatten(structure, moved)

    def _check_split(self, name: str, leaf: np.ndarray, axis: int) -> None:
        if not -leaf.ndim <= axis < leaf.ndim:
            raise ValueError(
                f"{name} must have the axis that `batch_axis` sets. "
                f"Expected axis {axis}. Received shape {leaf.shape}. Change "
                "`batch_axis`."
            )
        if leaf.shape[axis] % self.shares:
            raise ValueError(
                f"{name} must be divisible by the number of cores, "
                f"{self.shares}, along axis {axis} of `batch_axis`. Received "
                f"shape {leaf.shape}. Drop the remaining examples in input_fn."
            )


Cut: TypeAlias = Callable[[Any, Sequence[int]], Any]


def partitioned(
    dims: Sequence[PyTree],
    cores: int,
    cut: Cut,
    features: Features,
    labels: Labels,
) -> tuple[Features, Labels]:
    """Shards a replica's features and labels over its cores.

    Args:
        dims: The value of `TPUConfig.input_partition_dims`.
        cores: The number of cores of a replica.
        cut: Shards a tensor, given the number of shards of each dimension.

    Raises:
        ValueError: The dims do not fit the features or the labels.
    """
    of_features, *rest = dims
    shared = _split("features", of_features, cores, cut, features)
    if not rest or rest[0] is None or labels is None:
        return shared, labels
    return shared, _split("labels", rest[0], cores, cut, labels)


def _split(name: str, dims: PyTree, cores: int, cut: Cut, nest: PyTree) -> PyTree:
    marked, structure = jax.tree_util.tree_flatten_with_path(nest, is_unbatched)
    counts = _as_in(structure, name, dims, nest)
    parts = []
    for (path, leaf), count in zip(marked, counts, strict=True):
        if count is not None:
            _check(name + jax.tree_util.keystr(path), leaf, count, cores)
            leaf = cut(leaf, count)
        parts.append(leaf)
    return jax.tree.unflatten(structure, parts)


def _as_in(structure: Any, name: str, dims: PyTree, nest: PyTree) -> list[Any]:
    """Returns the dims of each tensor of a pytree."""
    try:
        counts: list[Any] = structure.flatten_up_to(dims)
    except ValueError as error:
        raise ValueError(
            f"`input_partition_dims` must have the structure of the {name}, "
            f"with a list of int or None for each tensor. Received: {dims!r} "
            f"for {jax.tree.map(lambda leaf: leaf.shape, nest)}. {error}"
        ) from error
    return counts


def _check(name: str, leaf: Any, count: Any, cores: int) -> None:
    """Checks the number of shards of each dimension of a tensor."""
    received = f"Received: {count!r} for {name}"
    if (
        not isinstance(count, list | tuple)
        or is_unbatched(leaf)
        or not all(isinstance(each, int) and each >= 1 for each in count)
    ):
        raise ValueError(
            "`input_partition_dims` must be None for a replicated tensor, or a "
            "list with the number of shards, 1 or more, of each dimension. "
            f"{received}. Change its entry."
        )
    if len(count) != len(leaf.shape):
        raise ValueError(
            "`input_partition_dims` must have a number of shards for each "
            f"dimension. {received}, of shape {leaf.shape}. Add or remove "
            "numbers."
        )
    if math.prod(count) not in (1, cores):
        raise ValueError(
            "The product of a tensor's numbers of shards must be "
            f"num_cores_per_replica={cores}, or 1. {received}. Change the "
            "numbers."
        )
