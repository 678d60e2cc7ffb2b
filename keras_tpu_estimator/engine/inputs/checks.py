"""Checks of batches, with the name of the tensor that is wrong."""

import dataclasses
from collections.abc import Collection
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.engine.inputs.batch import Batch, StackedSteps
from keras_tpu_estimator.engine.inputs.batch_finder import BatchFinder
from keras_tpu_estimator.engine.inputs.hosted import tensors_of
from keras_tpu_estimator.engine.inputs.input_shapes import InputShapes
from keras_tpu_estimator.engine.inputs.unbatched import is_unbatched, named_leaves
from keras_tpu_estimator.ground.base.dtype_changes import check_fits
from keras_tpu_estimator.ground.base.shown import shown, some

_NUMBERS = "biufc"
# What only the host's processor has.
_LONG = "gG"
_ADVICE = (
    "Devices have 32 bits by default. Hash ids into a smaller range in "
    "input_fn, scale numbers, split them into two features, or leave the "
    "feature out."
)
# So many batches without an example, one after another, are a mistake.
_MOST_EMPTY = 10_000


class BatchCheck:
    """Checks each batch of a call against the first.

    Args:
        size: The batch size asked for, or `None` if it was not told.
        is_any_size: Whether batches may also be larger, or smaller before the
            last. Defaults to `False`.
        is_padded: Whether smaller batches are filled up, so that any may be,
            and none is left out. Defaults to `False`.
        may_share: Whether tensors need no batch axis. Defaults to `False`.
        shapes: Counts the shapes of the batches. Defaults to a new count
            without a limit.
    """

    def __init__(
        self,
        size: int | None,
        is_any_size: bool = False,
        is_padded: bool = False,
        may_share: bool = False,
        shapes: InputShapes | None = None,
    ):
        self._shapes = InputShapes() if shapes is None else shapes
        self._limit = None if is_any_size else size
        self._is_padded = is_padded
        self._finder = BatchFinder(size) if may_share else None
        self._expected: Expected | None = None
        self._passed: dict[Any, tuple[Collection[str], int]] = {}
        self._smaller: int | None = None
        self._empty = 0

    def is_empty(self, batch: Batch) -> bool:
        """Whether a batch has no example, and is to be left out.

        Nothing else is asked of it: what is made of no examples often has
        another shape and dtype.

        Raises:
            ValueError: There seem to be no others.
        """
        if self._is_padded or not self._has_no_example(batch):
            self._empty = 0
            return False
        self._empty += 1
        if self._empty == _MOST_EMPTY:
            raise ValueError(
                "`input_fn` should give batches of examples. Received "
                f"{_MOST_EMPTY} batches without an example, one after another. "
                "End the input where it has no more, and look at what filters "
                "it."
            )
        return True

    def _has_no_example(self, batch: Batch) -> bool:
        leaves = jax.tree.leaves((batch.features, batch.labels))
        if all(leaf.shape[:1] != (0,) for leaf in leaves):
            return False
        shared = self._finder.shared_in(batch) if self._finder else ()
        return all(
            leaf.shape[:1] == (0,) for name, leaf in batch.leaves if name not in shared
        )

    def __call__(self, batch: Batch, step: int) -> Collection[str]:
        """Checks the batch of a step; one like an earlier one is all right.

        Returns:
            The names of tensors that have no batch axis.
        """
        signature = batch.signature
        if signature not in self._passed:
            self._passed[signature] = self._check(batch, step)
        shared, size = self._passed[signature]
        if self._smaller is not None:
            raise ValueError(
                "Only the last batch may be smaller than params['batch_size']."
                f" Expected {self._limit} examples. Received a batch of "
                f"{self._smaller}, and another one after it. Use "
                "params['batch_size'] where input_fn makes batches, and call "
                "`repeat` before `batch`."
            )
        if not self._is_padded and self._limit and size < self._limit:
            self._smaller = size
        return shared

    def _check(self, batch: Batch, step: int) -> tuple[Collection[str], int]:
        shared = self._finder.shared_in(batch) if self._finder else ()
        marked = batch.sharing(shared)
        check_tensors(batch, shared)
        if self._expected is None:
            self._expected = Expected.of(batch)
        self._expected.check(batch, step)
        check_size(marked, self._limit)
        self._shapes.note(marked, step)
        return shared, marked.size


@dataclasses.dataclass(frozen=True)
class Expected:
    """The structure, ranks and dtypes that all batches of a call have.

    Attributes:
        structure: The nest of features and labels.
        shapes: Shapes of the first batch by name.
        dtypes: Dtypes by name.
    """

    structure: Any
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, np.dtype]

    @classmethod
    def of(cls, first: Batch) -> "Expected":
        """Returns those of the first batch."""
        return cls(
            _structure(first),
            {name: leaf.shape for name, leaf in first.leaves},
            {name: leaf.dtype for name, leaf in first.leaves},
        )

    def check(self, batch: Batch, step: int) -> None:
        """Checks a later batch.

        Raises:
            ValueError: It differs in more than the sizes of its axes.
        """
        if _structure(batch) != self.structure:
            raise ValueError(
                f"The batch of step {step} has another structure than the "
                f"first: {self._difference(batch)}. Yield the same nest every "
                "time."
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
        told = [f"{some(missing)} missing"] if missing else []
        told += [f"{some(added)} in addition"] if added else []
        return ", ".join(told) or (
            f"{shown(self.structure)} was expected, and {shown(_structure(batch))} came"
        )


def check_tensors(batch: Batch, shared: Collection[str] = ()) -> None:
    """Checks that the tensors of a batch can be put on devices and split.

    Args:
        shared: Names of tensors that need no batch axis. Defaults to none.

    Raises:
        ValueError: One holds no numbers, has no batch axis, or has another
            batch size than the others.
    """
    first: str | None = None
    unbatched = {
        name
        for name, leaf in named_leaves(batch.features, batch.labels)
        if is_unbatched(leaf)
    }
    for name, leaf in batch.leaves:
        if not _are_numbers(leaf.dtype):
            raise ValueError(
                f"{name} should hold numbers, as devices hold nothing else. "
                f"Received dtype {leaf.dtype}. Encode strings as numbers in "
                "input_fn, or leave the feature out."
            )
        if name in shared or name in unbatched:
            continue
        if leaf.ndim == 0:
            raise ValueError(
                f"{name} should have the batch as its first axis. Received a "
                "scalar. Repeat it for each example, or pass it in params."
            )
        if first is None:
            first, size = name, leaf.shape[0]
        if leaf.shape[0] != size:
            raise ValueError(
                f"All tensors should have the same batch size. Received "
                f"{size} for {first}, but {leaf.shape[0]} for {name}. Make "
                "them equal in input_fn. If these are single examples, join "
                "them by batch(params['batch_size']); if the batch is another "
                "axis, say where it is by TPUEstimator(batch_axis=[...])."
            )


def check_range(stacked: StackedSteps) -> None:
    """Checks that numbers fit the 32 bits that devices have for them."""
    leaves = jax.tree.leaves((stacked.features, stacked.labels))
    if all(jax.dtypes.canonicalize_dtype(a.dtype) == a.dtype for a in leaves):
        return
    for name, leaf in stacked.leaves:
        steps = leaf if leaf.strides[0] else leaf[:1]  # One step, repeated.
        check_array(name, steps)


def check_array(name: str, array: np.ndarray) -> None:
    """Checks that the numbers of an array fit the 32 bits that devices have."""
    narrow = jax.dtypes.canonicalize_dtype(array.dtype)
    check_fits(array, narrow, name, _ADVICE)


def check_size(batch: Batch, size: int | None) -> None:
    """Checks that a batch is not larger than asked for."""
    if size is not None and batch.size > size:
        raise ValueError(
            f"`input_fn` was asked for batches of {size} examples in "
            f"params['batch_size']. Received a batch of {batch.size}. Use "
            "params['batch_size'] where it makes batches."
        )


def _structure(batch: Batch) -> Any:
    return jax.tree.structure((tensors_of(batch.features), batch.labels))


def _are_numbers(dtype: np.dtype) -> bool:
    """Whether devices may have a dtype, or a narrower one in its place."""
    # 2 is what NumPy says of dtypes of other packages, such as bfloat16.
    if dtype.isbuiltin == 2:
        return True
    return dtype.kind in _NUMBERS and dtype.char not in _LONG
