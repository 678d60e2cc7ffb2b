"""Tensors of a batch without a batch axis, such as a rate: shared tensors.

The input reader marks them, because only the reader sees all batches. The mark is
a node of the pytree, which maps over pytrees preserve. Later code does not guess
from sizes.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import Features, Labels, PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Unbatched:
    """A tensor that all examples of a batch share.

    If cores have separate batches, it is stacked, with one row for each core.
    """

    value: Any


def is_unbatched(node: object) -> bool:
    """Returns whether a node of a pytree is a shared tensor."""
    return isinstance(node, Unbatched)


def named_leaves(features: Features, labels: Labels) -> list[tuple[str, Any]]:
    """Returns all leaves with names such as `features['image']`, and their marks."""
    return [
        (name + jax.tree_util.keystr(path), leaf)
        for name, tree in (("features", features), ("labels", labels))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_unbatched)
    ]


def named_arrays(features: Features, labels: Labels) -> list[tuple[str, np.ndarray]]:
    """Returns all arrays with names such as `features['image']`, without marks."""
    return [
        (name, leaf.value if isinstance(leaf, Unbatched) else leaf)
        for name, leaf in named_leaves(features, labels)
    ]


def map_batched(function: Callable[..., Any], *trees: PyTree) -> PyTree:
    """Maps over tensors with a batch axis. Shared ones come from the first pytree."""
    return jax.tree.map(
        lambda *leaves: leaves[0] if is_unbatched(leaves[0]) else function(*leaves),
        *trees,
        is_leaf=is_unbatched,
    )


def batch_size(tree: PyTree, axis: int = 0) -> int:
    """Returns the length of a pytree's batch axis; 1 if all tensors are shared."""
    leaves = jax.tree.leaves(tree, is_leaf=is_unbatched)
    for leaf in leaves:
        if not is_unbatched(leaf) and len(leaf.shape) > axis:
            return leaf.shape[axis]
    if leaves and all(map(is_unbatched, leaves)):
        return 1
    raise ValueError(
        "At least one tensor must have the batch as its first axis. "
        f"Received: {jax.tree.map(lambda leaf: leaf.shape, tree)}. Add a batch "
        "axis to one of the features."
    )


def joined_of_cores(
    batches: Sequence[tuple[Features, Labels]], cores: int
) -> tuple[Features, Labels]:
    """Concatenates the batches of some cores, and stacks their shared tensors.

    With fewer batches than cores, shared tensors must be equal. Tensors may differ only
    in the batch size.
    """

    def join(path: Any, *leaves: Any) -> Any:
        if not is_unbatched(leaves[0]):
            _check_alike(path, [leaf.shape[1:] for leaf in leaves])
            return np.concatenate(leaves)
        values = [leaf.value for leaf in leaves]
        _check_alike(path, [value.shape for value in values])
        if len(values) < cores:
            _check_equal(path, values)
            values = values[:1] * cores
        return Unbatched(np.stack(values))

    return jax.tree_util.tree_map_with_path(join, *batches, is_leaf=is_unbatched)


def joined_of_hosts(
    parts: Sequence[tuple[Features, Labels]], cores: int
) -> tuple[Features, Labels]:
    """Concatenates the stacked steps of some hosts, of any sizes.

    Examples are redistributed over all cores, so that shared tensors must be equal.
    They get one row for each core.
    """

    def join(path: Any, *leaves: Any) -> Any:
        if not is_unbatched(leaves[0]):
            return np.concatenate(leaves, 1)
        values = np.concatenate([leaf.value for leaf in leaves], 1)
        _check_equal(path, [*np.moveaxis(values, 1, 0)])
        return Unbatched(np.repeat(values[:, :1], cores, 1))

    return jax.tree_util.tree_map_with_path(join, *parts, is_leaf=is_unbatched)


def unmarked(features: Features, labels: Labels) -> tuple[Features, Labels]:
    """Returns features and labels without marks of shared tensors."""
    return jax.tree.map(
        lambda leaf: leaf.value if is_unbatched(leaf) else leaf,
        (features, labels),
        is_leaf=is_unbatched,
    )


def unmarked_of_core(features: Features, labels: Labels) -> tuple[Features, Labels]:
    """Returns the same for one core, with a single row in each shared tensor."""
    first = jax.tree.map(
        lambda leaf: Unbatched(leaf.value[0]) if is_unbatched(leaf) else leaf,
        (features, labels),
        is_leaf=is_unbatched,
    )
    return unmarked(*first)


def _check_alike(path: Any, shapes: Sequence[tuple[int, ...]]) -> None:
    """Checks that the batches of one step have equal shapes."""
    if all(shape == shapes[0] for shape in shapes):
        return
    raise ValueError(
        f"{_name(path)} must have the same shape in the batches of all cores "
        "in a step. Received batches of examples with the shapes "
        f"{', '.join(map(str, shapes))}. Pad the batches of a step to one "
        "length in input_fn, or use PER_HOST_V1 in "
        "TPUConfig.per_host_input_for_training, which splits one batch."
    )


def _check_equal(path: Any, values: Sequence[np.ndarray]) -> None:
    if all(np.array_equal(values[0], value) for value in values):
        return
    raise ValueError(
        f"{_name(path)} must be equal in the batches of a last, smaller step, "
        "which runs as one batch, because it has no batch axis. "
        f"Received: {shown(list(values))}. Repeat it for each example, or drop "
        "the remaining batches."
    )


def _name(path: Any) -> str:
    name = ("features", "labels")[path[0].idx]
    return name + jax.tree_util.keystr(path[1:])
