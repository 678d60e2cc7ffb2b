"""The result of one call of `input_fn`, which is read batch by batch."""

import abc
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Self

import jax

from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.engine.inputs.batch import Batch, PairOf, pair_of
from keras_tpu_estimator.engine.inputs.deployment import InputPlan
from keras_tpu_estimator.engine.inputs.stacking import StackSize


class BatchSource(abc.ABC):
    """A source of batches, which is read once, optionally from a state.

    Attributes:
        is_single: Whether the source is one batch, which training repeats.
        stacked: The number of batches in an item; 0 for items that are batches.
        may_stay: Whether an item remains valid when the next one is read.
    """

    is_single = False
    stacked = 0
    may_stay = True

    def __init__(self, value: Any):
        self._value = value

    @abc.abstractmethod
    def check(self, plan: InputPlan) -> None:
        """Raises `TypeError` if the plan of calls does not allow such a source."""

    def check_repeated(self) -> None:  # noqa: B027 - most are not repeated
        """Raises `TypeError` if this source must not be the batch of every step."""

    @abc.abstractmethod
    def items(self, state: Any = None) -> Iterator[Any]:
        """Returns an iterator over the items, from the beginning or a state."""

    def state_of(self, items: Iterator[Any]) -> Any:
        """Returns the state of an iterator over the items, or `None`."""
        del items

    def stacked_for(
        self, steps: int, batch_size: int | None, stack_size: StackSize
    ) -> int:
        """Returns the number of batches to read at once; 0 for single batches."""
        del steps, batch_size, stack_size
        return 0

    def in_stacks(self, batches: int) -> Self:
        """Returns a source with that many batches in an item, where possible."""
        del batches
        return self

    @staticmethod
    def release(items: list[Iterator[Any]]) -> None:
        """Releases the iterators in a list."""
        items.clear()


class Arrays(BatchSource):
    """A source with a single batch."""

    is_single = True

    def check(self, plan: InputPlan) -> None:
        """Checks that the plan does not need a batch for each of several cores."""
        if plan.batches_per_call > 1:
            raise TypeError(
                "With PER_HOST_V2 input_fn must return a Dataset or an "
                "iterable of batches, one for each core. Received: "
                f"{type(self._value).__name__}. Use PER_HOST_V1 for tensors."
            )

    def check_repeated(self) -> None:
        """Checks that it is not the first element of a TensorFlow iterator."""
        tensorflow = sys.modules.get("tensorflow")
        leaves = jax.tree.leaves(self._value)
        if tensorflow is not None and any(
            isinstance(leaf, tensorflow.Tensor) for leaf in leaves
        ):
            raise TypeError(
                "`input_fn` must return a tf.data.Dataset, or an iterable of "
                "batches. Received TensorFlow tensors, which would be the "
                "batch of every step: without a graph, `get_next()` of an "
                "iterator is called once. Return the dataset itself, or for "
                "a single batch return arrays: `tensor.numpy()`."
            )

    def items(self, state: Any = None) -> Iterator[Any]:
        """Returns an iterator over the single batch, after checking a list."""
        if state is not None:
            raise ValueError(
                "The iterator state of a single batch must be None. Received: "
                f"{shown(state)}. Omit it."
            )
        if isinstance(self._value, list):
            _check_list(self._value)
        return iter([self._value])


class SourceReader:
    """A counting iterator over a source, which may have a state.

    It holds the user's objects until it is closed, without reference cycles, because
    TensorFlow's objects must not be collected on any thread. `batches` counts read
    batches except skipped ones; the last item may have fewer than were counted.
    """

    def __init__(self, source: BatchSource, pair_of: PairOf = pair_of):
        self.batches = 0
        self._source = source
        self._pair_of = pair_of
        self._items: Iterator[Any] | None = None

    def open(self, state: Any, batches: int) -> None:
        """Starts to read from a result of `state`, after that many batches."""
        self._items = self._source.items(state)
        self.batches = batches

    def state(self) -> Any:
        """Returns the state of the iterator, or `None`."""
        return self._source.state_of(self._opened())

    def batch(self, item: Any) -> Batch:
        """Returns an item as a batch, or as stacked batches."""
        return Batch.from_value(item, self._pair_of)

    def uncount(self, batches: int) -> None:
        """Subtracts skipped batches of the last item from the count."""
        self.batches -= batches

    def close(self) -> None:
        """Releases the user's objects."""
        release = self._source.release
        last = [] if self._items is None else [self._items]
        self._source, self._items = Arrays(()), iter(())
        release(last)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        item = next(self._opened())
        self.batches += self._source.stacked or 1
        return item

    def _opened(self) -> Iterator[Any]:
        if self._items is None:
            self._items = self._source.items()
        return self._items


def _check_list(value: list[Any]) -> None:
    """Raises an error if a list is not a pair, or looks like two batches."""
    kinds = {_keys_of_batch(item) for item in value}
    are_batches = len(kinds) == 1 and None not in kinds
    if len(value) != 2 or are_batches:
        looks = ", whose items look like batches" if are_batches else ""
        raise ValueError(
            "A list that `input_fn` returns must have length 2: features and "
            "labels. Received a list of length "
            f"{len(value)}{looks}. Return iter(batches) for several batches, a "
            "tuple (features, labels) for one pair, or a dict for several "
            "features."
        )


def _keys_of_batch(value: Any) -> Any:
    """Returns a key that two batches share, or `None` for another value."""
    if isinstance(value, Mapping):
        return frozenset(value)
    if isinstance(value, tuple) and len(value) in (2, 3):
        return len(value)
    return None
