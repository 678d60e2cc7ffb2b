"""Checks of batches, whose errors name the tensor."""

import collections
import dataclasses
import logging
from collections.abc import Collection
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.base.common.dtype_changes import check_fits
from keras_tpu_estimator.base.common.shown import shown, some
from keras_tpu_estimator.engine.inputs.batch import (
    Batch,
    Hosted,
    tensors_of,
    unbatched_by_host,
)
from keras_tpu_estimator.engine.inputs.input_shapes import InputShapes
from keras_tpu_estimator.engine.inputs.stacking import Stack

_logger = logging.getLogger("keras_tpu_estimator")
_LABELS = "labels"
# The rank of a batch of images.
_RANK = 4


class BatchFinder:
    """The tensors that have a batch axis, found from their shapes.

    In the first batch, these are the tensors whose first axis has the requested size,
    or else the most common length. In a batch of another size, they are those among
    them whose first axis changed, if some are features. A tensor whose first axis
    changed like a later axis of other tensors is a sequence that was as long as the
    first batch. If no label has a batch axis, all labels except scalars have one.
    Images whose last axis is as long as the labels, when no first axis is, have the
    batch as their last axis. Without a size, scalars are one example.
    """

    def __init__(self, size: int | None):
        self._size = size
        self._first: dict[str, tuple[int, ...]] = {}
        self._batched: set[str] = set()

    def shared_in(self, batch: Batch) -> Collection[str]:
        """Returns the names of the tensors without a batch axis."""
        if isinstance(batch.features, Hosted):
            return unbatched_by_host(batch.features)
        shapes = {name: leaf.shape for name, leaf in batch.leaves}
        batched = self._batched or self._begin(shapes)
        first = self._first or shapes
        labels = {name for name in shapes if name.startswith(_LABELS)}
        changed = {n for n in batched if _lengths(first, shapes, n, slice(1))}
        lengths = {
            pair
            for name in batched - changed
            for pair in _lengths(first, shapes, name, slice(1, None))
        }
        sequences = {
            name
            for name in changed
            if lengths.issuperset(_lengths(first, shapes, name, slice(1)))
        }
        batched, changed = batched - sequences, changed - sequences
        if changed - labels or (changed and batched <= labels):
            batched = changed
        if not labels & batched:
            batched = batched | {name for name in labels if shapes[name]}
        return shapes.keys() - batched

    def _begin(self, shapes: dict[str, tuple[int, ...]]) -> set[str]:
        """Returns the tensors with a batch axis in the first nonempty batch."""
        size = self._size_in(shapes)
        batched = {name for name, shape in shapes.items() if shape[:1] == (size,)}
        if size:
            self._first, self._batched = shapes, batched
            self._log_shared(size)
        return batched

    def _size_in(self, shapes: dict[str, tuple[int, ...]]) -> int:
        of_labels, of_features = (
            [
                shape[0]
                for name, shape in shapes.items()
                if shape and name.startswith(_LABELS) == are_labels
            ]
            for are_labels in (True, False)
        )
        lengths = of_features + of_labels
        if not lengths and self._size is None:
            return 1
        if not lengths:
            raise ValueError(
                "At least one tensor must have the batch as its first axis. "
                f"Received only scalars: {some(sorted(shapes))}. Repeat one "
                "of them for each example."
            )
        if set(of_labels) == {0} and 0 in of_features:
            return 0
        if self._size in lengths:
            return self._size
        if self._size is None and len(set(of_labels) - set(of_features)) == 1:
            (size,) = set(of_labels) - set(of_features)
            images = [shape for shape in shapes.values() if len(shape) == _RANK]
            if any(shape[-1] == size for shape in images):
                return size
        return collections.Counter(lengths).most_common(1)[0][0]

    def _log_shared(self, size: int) -> None:
        for name in sorted(self._first.keys() - self._batched):
            _logger.info(
                "%s of shape %s has no batch of %d as its first axis, so that "
                "model_fn receives it undivided.",
                name,
                self._first[name],
                size,
            )


def _lengths(
    before: dict[str, tuple[int, ...]],
    now: dict[str, tuple[int, ...]],
    name: str,
    axes: slice,
) -> set[tuple[int, int]]:
    """Returns the pairs of lengths, before and now, of axes that have changed."""
    pairs = zip(before[name][axes], now.get(name, ())[axes], strict=False)
    return {pair for pair in pairs if pair[0] != pair[1]}


_NUMBERS = "biufc"
# Dtypes that only the host's processor supports.
_LONG = "gG"
_ADVICE = (
    "Devices have 32 bits by default. Hash ids into a smaller range in "
    "input_fn, scale numbers, split each into two features, or omit the "
    "feature."
)
# This number of consecutive empty batches is an error.
_MOST_EMPTY = 10_000


class BatchCheck:
    """A check of each batch of a call against the first.

    Batches may have any size if `is_any_size`, and else only the last one may be
    smaller. If `is_padded`, any batch may be smaller, and empty batches are not
    skipped. If `may_share`, tensors may lack a batch axis. If `warns`, a first batch
    that is smaller is reported, because a call may end before the next one.
    """

    def __init__(
        self,
        size: int | None,
        is_any_size: bool = False,
        is_padded: bool = False,
        may_share: bool = False,
        shapes: InputShapes | None = None,
        warns: bool = False,
    ):
        self._warns = warns
        self._shapes = InputShapes() if shapes is None else shapes
        self._limit = None if is_any_size else size
        self._is_padded = is_padded
        self._finder = BatchFinder(size) if may_share else None
        self._expected: Expected | None = None
        self._passed: dict[Any, tuple[Collection[str], int]] = {}
        self._smaller: int | None = None
        self._empty = 0

    def is_empty(self, batch: Batch) -> bool:
        """Returns whether a batch has no examples and must be skipped.

        An empty batch is not checked, because it often has another shape and dtype.
        """
        if self._is_padded or not self._has_no_example(batch):
            return False
        self._empty += 1
        if self._empty == _MOST_EMPTY:
            raise ValueError(
                "`input_fn` must return batches of examples. Received "
                f"{_MOST_EMPTY} consecutive batches without examples. End the "
                "input after its last example, and check its filters."
            )
        return True

    def _has_no_example(self, batch: Batch) -> bool:
        leaves = jax.tree.leaves(batch.tensors)
        if all(leaf.shape[:1] != (0,) for leaf in leaves):
            return False
        shared = self._finder.shared_in(batch) if self._finder else ()
        return all(
            leaf.shape[:1] == (0,) for name, leaf in batch.leaves if name not in shared
        )

    def __call__(self, batch: Batch, step: int) -> Collection[str] | None:
        """Checks a batch, and returns the names of its shared tensors.

        It returns `None` for a batch to skip. Only a new signature takes long.
        """
        signature = batch.signature
        if signature not in self._passed:
            if self.is_empty(batch):
                return None
            self._passed[signature] = self._check(batch, step)
        self._empty = 0
        shared, size = self._passed[signature]
        if self._smaller is not None:
            raise ValueError(
                "Only the last batch may be smaller than params['batch_size']."
                f" Expected {self._limit} examples. Received a batch of "
                f"{self._smaller}, and another one after it. Use "
                "params['batch_size'] in input_fn, and call `repeat` before "
                "`batch`."
            )
        if not self._is_padded and self._limit and size < self._limit:
            self._smaller = size
            if self._warns:
                self._warn(size)
        self._warns = False
        return shared

    def _warn(self, size: int) -> None:
        _logger.warning(
            "The first batch of training has %d examples, fewer than "
            "params['batch_size'], which is %d. Training uses this smaller batch. Use "
            "params['batch_size'] in input_fn, and call `repeat` before `batch`.",
            size,
            self._limit,
        )

    def _check(self, batch: Batch, step: int) -> tuple[Collection[str], int]:
        shared = self._finder.shared_in(batch) if self._finder else ()
        marked = batch.sharing(shared)
        check_tensors(batch, shared)
        if self._expected is None:
            self._expected = Expected.from_batch(batch)
        else:
            self._expected.check(batch, step)
        check_size(marked, self._limit)
        self._shapes.note(marked, step)
        return shared, marked.size


@dataclasses.dataclass(frozen=True)
class Expected:
    """The structure, ranks and dtypes of all batches, and the first batch's shapes."""

    structure: Any
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, np.dtype]

    @classmethod
    def from_batch(cls, first: Batch) -> "Expected":
        """Returns the structure, ranks and dtypes of the first batch."""
        leaves = first.leaves
        return cls(
            _structure(first),
            {name: leaf.shape for name, leaf in leaves},
            {name: leaf.dtype for name, leaf in leaves},
        )

    def check(self, batch: Batch, step: int) -> None:
        """Raises an error if a batch differs in more than the lengths of its axes."""
        if _structure(batch) != self.structure:
            raise ValueError(
                "All batches must have the same structure. Received at step "
                f"{step} another one than the first: {self._difference(batch)}. "
                "Yield the same keys and nesting each time."
            )
        for name, leaf in batch.leaves:
            shape, dtype = self.shapes[name], self.dtypes[name]
            if leaf.dtype != dtype or leaf.ndim != len(shape):
                advice = (
                    "Reshape it to one number of dimensions"
                    if leaf.ndim != len(shape)
                    else "Cast it to one dtype"
                )
                raise ValueError(
                    f"{name} must have the same rank and dtype in every batch. "
                    f"Expected {dtype} of rank {len(shape)}, such as the shape "
                    f"{shape} of the first batch. Received at step {step}: "
                    f"{leaf.dtype} of shape {leaf.shape}. {advice} in input_fn."
                )

    def _difference(self, batch: Batch) -> str:
        names = {name for name, _ in batch.leaves}
        missing = sorted(self.shapes.keys() - names)
        added = sorted(names - self.shapes.keys())
        differences = [f"{some(missing)} missing"] if missing else []
        differences += [f"{some(added)} in addition"] if added else []
        return ", ".join(differences) or (
            f"{shown(_structure(batch))} instead of {shown(self.structure)}"
        )


def check_tensors(batch: Batch, shared: Collection[str] = ()) -> None:
    """Raises an error if tensors are not numbers, or unshared ones differ in size."""
    first: str | None = None
    shared = {*shared, *unbatched_by_host(batch.features)}
    for name, leaf in batch.leaves:
        if not _are_numbers(leaf.dtype):
            raise ValueError(
                f"{name} must contain numbers, because devices support nothing "
                f"else. Received dtype {leaf.dtype}. Encode strings as numbers in "
                "input_fn, or omit the feature."
            )
        if name in shared:
            continue
        if leaf.ndim == 0:
            raise ValueError(
                f"{name} must have the batch as its first axis. Received a "
                "scalar. Repeat it for each example, or pass it in params."
            )
        if first is None:
            first, size = name, leaf.shape[0]
        if leaf.shape[0] != size:
            raise ValueError(
                f"All tensors must have the same batch size. Received "
                f"{size} for {first}, but {leaf.shape[0]} for {name}. Make "
                "them equal in input_fn. If these are single examples, combine "
                "them with batch(params['batch_size']). If the batch is another "
                "axis, pass TPUEstimator(batch_axis=[...])."
            )


def check_range(stack: Stack) -> None:
    """Checks that numbers fit the 32 bits of devices."""
    leaves = jax.tree.leaves(stack.tensors)
    if all(jax.dtypes.canonicalize_dtype(a.dtype) == a.dtype for a in leaves):
        return
    for name, leaf in stack.leaves:
        steps = leaf if leaf.strides[0] else leaf[:1]  # One step, repeated.
        check_array(name, steps)


def check_array(name: str, array: np.ndarray) -> None:
    """Checks that the numbers of an array fit the 32 bits of devices."""
    narrow = jax.dtypes.canonicalize_dtype(array.dtype)
    check_fits(array, narrow, name, _ADVICE)


def check_size(batch: Batch, size: int | None) -> None:
    """Checks that a batch is not larger than the requested size."""
    if size is not None and batch.size > size:
        raise ValueError(
            f"`input_fn` must return batches of at most {size} examples, the "
            f"value of params['batch_size']. Received a batch of {batch.size}. "
            "Use params['batch_size'] in input_fn."
        )


def _structure(batch: Batch) -> Any:
    return jax.tree.structure((tensors_of(batch.features), batch.labels))


def _are_numbers(dtype: np.dtype) -> bool:
    """Returns whether devices support a dtype, or a narrower one in its place."""
    # NumPy marks dtypes of other packages, such as bfloat16, with 2.
    if dtype.isbuiltin == 2:
        return True
    return dtype.kind in _NUMBERS and dtype.char not in _LONG
