"""The shapes of batches, and the axes that divide them.

Shapes must be few and equal in all processes, because each shape of a mode is compiled
separately. `BatchAxes` moves the user's batch axes to the front and back. `partitioned`
shards large inputs, such as images, over the cores of a replica.
"""

import dataclasses
import functools
import logging
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator.base.common.shown import some
from keras_tpu_estimator.base.common.types import Features, Labels, PyTree
from keras_tpu_estimator.engine.inputs.batch import Batch
from keras_tpu_estimator.engine.inputs.stacking import Stack
from keras_tpu_estimator.engine.inputs.unbatched import is_unbatched, named_leaves

_logger = logging.getLogger("keras_tpu_estimator")

# A larger number of shapes is reported.
_MANY = 8

# The shapes of tensors by name, with "batch" for the size of the batch.
_Shape = tuple[int | str, ...]
_Shapes = dict[str, _Shape]


class InputShapes:
    """The shapes of a mode's batches, over all calls, without the batch axis.

    `most` is the maximum number of shapes, or `None`.
    """

    def __init__(self, mode: str = "", most: int | None = None):
        self._mode = mode
        self._most = most
        self._seen: list[_Shapes] = []
        self._is_reported = False

    def note(self, batch: Batch, step: int) -> None:
        """Counts a batch's shape, with shared tensors marked, up to the maximum."""
        leaves = named_leaves(batch.features, batch.labels)
        shapes = {
            name: (
                leaf.value.shape if is_unbatched(leaf) else ("batch", *leaf.shape[1:])
            )
            for name, leaf in leaves
        }
        if shapes in self._seen:
            return
        if self._most is not None and len(self._seen) >= self._most:
            raise ValueError(
                f"Batches of mode {self._mode!r} must have at most "
                f"{self._most} shape{'' if self._most == 1 else 's'}, which "
                "RunConfig.max_input_shapes sets. Received another one at step "
                f"{step}: {self._changes([*self._seen, shapes])}. Pad to fewer "
                "lengths in input_fn, or set a larger number."
            )
        self._seen.append(shapes)
        if len(self._seen) > _MANY and not self._is_reported:
            self._is_reported = True
            _logger.warning(
                "The batches of mode %r have come in %d shapes: %s. Each shape "
                "takes the time and the memory of one more compilation. Pad to "
                "fewer lengths in input_fn, with "
                "Dataset.bucket_by_sequence_length(..., "
                "pad_to_bucket_boundary=True) or with the padded_shapes of "
                "padded_batch. RunConfig(max_input_shapes=...) sets a limit.",
                self._mode,
                len(self._seen),
                self._changes(self._seen),
            )

    def _changes(self, known_shapes: list[_Shapes]) -> str:
        """Returns the shapes of the tensors whose shapes differ, as a text."""
        by_name: dict[str, dict[_Shape, None]] = {}
        for shapes in known_shapes:
            for name, shape in shapes.items():
                by_name.setdefault(name, {})[shape] = None
        return some(
            [
                f"{name} has the shapes {some([_shown(s) for s in tensor_shapes], 4)}"
                for name, tensor_shapes in by_name.items()
                if len(tensor_shapes) > 1
            ],
            separator="; ",
        )


def _shown(shape: _Shape) -> str:
    return f"({', '.join(map(str, shape))})"


_STRUCTURE = "the structure of features and labels"


@dataclasses.dataclass(frozen=True)
class ElementSpec:
    """The structure of a batch, with dtypes and shapes without the batch size.

    Facts are texts by tensor, such as `int32 of shape (batch, 5)`.
    """

    facts: Mapping[str, str]

    @classmethod
    def from_stack(cls, stack: Stack) -> Self:
        """Returns the spec of the steps of a stack."""
        leaves = named_leaves(*stack.tensors)
        facts = {name: _described(leaf) for name, leaf in leaves}
        structure = jax.tree.structure(stack.tensors)
        return cls(facts | {_STRUCTURE: str(structure)})

    @functools.cached_property
    def digest(self) -> int:
        """A checksum that is equal for equal specs in all processes."""
        return zlib.crc32(repr(sorted(self.facts.items())).encode())


def mismatch_error(facts: Sequence[Mapping[str, str] | None]) -> ValueError:
    """Returns the error for different specs, given each host's facts or `None`."""
    names = dict.fromkeys(name for spec in facts for name in spec or ())
    unlike = [
        name
        for name in names
        if len({spec.get(name) for spec in facts if spec is not None}) > 1
    ]
    # The structure repeats the names.
    named = [name for name in unlike if name != _STRUCTURE] or unlike
    received = some(
        [
            f"For {name}, "
            + "; ".join(
                f"host {host} has {spec.get(name, 'nothing')}"
                for host, spec in enumerate(facts)
                if spec is not None
            )
            for name in named
        ],
        separator=". ",
    )
    return ValueError(
        "Batches on all hosts must have the same structure, dtypes and shapes, "
        f"except for the batch size. Received different ones. {received}. Return "
        "the same from input_fn on each host, for instance by padding tensors to "
        "one shape."
    )


def _described(leaf: Any) -> str:
    value = leaf.value if is_unbatched(leaf) else leaf
    dtype = jax.dtypes.canonicalize_dtype(value.dtype)
    first = ("core",) if is_unbatched(leaf) else ("batch",)
    return f"{dtype} of shape ({', '.join(map(str, first + value.shape[2:]))})"


@dataclasses.dataclass(frozen=True)
class BatchAxes:
    """The batch axis of each tensor, features first.

    Without axes, the batch is the first axis of all tensors. `shares` is the number of
    cores that must divide each batch evenly.
    """

    axes: Sequence[int] | None = None
    shares: int = 1

    def to_front(self, batch: Batch) -> Batch:
        """Moves the batch axes of a batch's tensors to the front, if they fit."""
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
                f"Received: shape {leaf.shape}, without axis {axis}. Change "
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

    `dims` is the value of `TPUConfig.input_partition_dims`. `cut` shards a tensor,
    given the number of shards of each dimension.
    """
    of_features, *other_dims = dims
    shared = _split("features", of_features, cores, cut, features)
    if not other_dims or other_dims[0] is None or labels is None:
        return shared, labels
    return shared, _split("labels", other_dims[0], cores, cut, labels)


def _split(name: str, dims: PyTree, cores: int, cut: Cut, tree: PyTree) -> PyTree:
    marked, structure = jax.tree_util.tree_flatten_with_path(tree, is_unbatched)
    counts = _as_in(structure, name, dims, tree)
    parts = []
    for (path, leaf), count in zip(marked, counts, strict=True):
        if count is not None:
            _check(name + jax.tree_util.keystr(path), leaf, count, cores)
            leaf = cut(leaf, count)
        parts.append(leaf)
    return jax.tree.unflatten(structure, parts)


def _as_in(structure: Any, name: str, dims: PyTree, tree: PyTree) -> list[Any]:
    """Returns the dims of each tensor of a pytree."""
    try:
        counts: list[Any] = structure.flatten_up_to(dims)
    except ValueError as error:
        raise ValueError(
            f"`input_partition_dims` must have the structure of the {name}, "
            f"with a list of int or None for each tensor. Received: {dims!r} "
            f"for {jax.tree.map(lambda leaf: leaf.shape, tree)}. {error}"
        ) from error
    return counts


def _check(name: str, leaf: Any, count: Any, cores: int) -> None:
    """Checks the number of shards of each dimension of a tensor."""
    received = f"Received: {count!r} for {name}"
    if (
        not isinstance(count, list | tuple)
        or is_unbatched(leaf)
        or not all(isinstance(size, int) and size >= 1 for size in count)
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
