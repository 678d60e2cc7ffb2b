"""Tensors of a batch that have no batch axis, such as a table or a rate.

Who reads a batch marks them, since only there all batches are seen; the mark
is a node of the nest, which every map over nests keeps. So what is behind the
reader needs no guess about sizes.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.ground.base.shown import shown
from keras_tpu_estimator.ground.base.types import Features, Labels, Nest


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Unbatched:
    """A tensor that all examples of a batch share.

    Attributes:
        value: The tensor. Where cores have batches of their own, one for each
            core, stacked.
    """

    value: Any


def is_unbatched(node: object) -> bool:
    """Whether a node of a nest is a shared tensor."""
    return isinstance(node, Unbatched)


def named_leaves(features: Features, labels: Labels) -> list[tuple[str, Any]]:
    """All tensors with their marks, and names such as `features['image']`.

    Example:

    >>> named_leaves({"x": 1, "rate": Unbatched(2)}, None)
    [("features['rate']", Unbatched(value=2)), ("features['x']", 1)]
    """
    return [
        (name + jax.tree_util.keystr(path), leaf)
        for name, nest in (("features", features), ("labels", labels))
        for path, leaf in jax.tree_util.tree_leaves_with_path(nest, is_unbatched)
    ]


def map_batched(function: Callable[..., Any], *nests: Nest) -> Nest:
    """Maps over the tensors that have a batch axis; others stay the first's.

    Example:

    >>> map_batched(lambda x: x + 1, {"x": 1, "rate": Unbatched(1)})
    {'rate': Unbatched(value=1), 'x': 2}
    """
    return jax.tree.map(
        lambda *leaves: leaves[0] if is_unbatched(leaves[0]) else function(*leaves),
        *nests,
        is_leaf=is_unbatched,
    )


def batch_size(nest: Nest, axis: int = 0) -> int:
    """The length of the batch axis of a nest's tensors.

    Tensors that are all shared are one example.

    Args:
        nest: Nest of arrays, or of anything with a shape.
        axis: The batch axis. Defaults to the first.

    Raises:
        ValueError: No tensor has one.
    """
    leaves = jax.tree.leaves(nest, is_leaf=is_unbatched)
    for leaf in leaves:
        if not is_unbatched(leaf) and len(leaf.shape) > axis:
            return leaf.shape[axis]
    if leaves and all(map(is_unbatched, leaves)):
        return 1
    raise ValueError(
        "Expected at least one tensor with the batch as its first axis. "
        f"Received: {jax.tree.map(lambda leaf: leaf.shape, nest)}. Give the "
        "batch in one of the features."
    )


def joined_of_cores(
    batches: Sequence[tuple[Features, Labels]], cores: int
) -> tuple[Features, Labels]:
    """The batches of some cores as one, with their shared tensors stacked.

    Args:
        cores: How many cores have batches. If there are fewer batches, their
            shared tensors have to be equal.

    Raises:
        ValueError: They are not, or tensors differ in more than the batch size.
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
    """The stacked steps of some hosts as one, whatever their sizes.

    Args:
        cores: How many cores have batches, on all hosts. Their examples are
            dealt anew, so that their shared tensors have to be equal.

    Raises:
        ValueError: They are not.
    """

    def join(path: Any, *leaves: Any) -> Any:
        if not is_unbatched(leaves[0]):
            return np.concatenate(leaves, 1)
        values = np.concatenate([leaf.value for leaf in leaves], 1)
        _check_equal(path, [*np.moveaxis(values, 1, 0)])
        return Unbatched(np.repeat(values[:, :1], cores, 1))

    return jax.tree_util.tree_map_with_path(join, *parts, is_leaf=is_unbatched)


def unmarked(features: Features, labels: Labels) -> tuple[Features, Labels]:
    """Features and labels with their shared tensors as they are."""
    return jax.tree.map(
        lambda leaf: leaf.value if is_unbatched(leaf) else leaf,
        (features, labels),
        is_leaf=is_unbatched,
    )


def unmarked_of_core(features: Features, labels: Labels) -> tuple[Features, Labels]:
    """The same on one core, of which there is one in each shared tensor."""
    first = jax.tree.map(
        lambda leaf: Unbatched(leaf.value[0]) if is_unbatched(leaf) else leaf,
        (features, labels),
        is_leaf=is_unbatched,
    )
    return unmarked(*first)


def _check_alike(path: Any, shapes: Sequence[tuple[int, ...]]) -> None:
    """Checks that the batches of one step have one shape."""
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
        f"{_name(path)} has no batch axis, so it "
        "should be equal in the batches of a last, smaller step, which is run "
        f"as one. Received: {shown(list(values))}. Repeat it for each example, "
        "or drop the batches that are left over."
    )


def _name(path: Any) -> str:
    nest = ("features", "labels")[path[0].idx]
    return nest + jax.tree_util.keystr(path[1:])
