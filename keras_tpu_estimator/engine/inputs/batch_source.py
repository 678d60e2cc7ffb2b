"""What one call of `input_fn` returned, to be read batch by batch."""

import abc
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Self

import jax

from keras_tpu_estimator.engine.inputs.batch import Batch, PairOf, pair_of
from keras_tpu_estimator.engine.inputs.deployment import InputPlan
from keras_tpu_estimator.engine.inputs.stacking import StackSize


class BatchSource(abc.ABC):
    """Where batches come from, which may be read once from a state on.

    Args:
        value: What the call of `input_fn` returned.

    Attributes:
        is_single: Whether it is one batch, which training repeats.
        stacked: How many batches an item is made of; 0 for items that are
            batches.
        may_stay: Whether nothing changes an item when the next one is read.
    """

    is_single = False
    stacked = 0
    may_stay = True

    def __init__(self, value: Any):
        self._value = value

    @abc.abstractmethod
    def check(self, plan: InputPlan) -> None:
        """Checks that the way of calling `input_fn` allows such a source.

        Raises:
            TypeError: It does not.
        """

    def check_repeated(self) -> None:  # noqa: B027 - most are never repeated
        """Checks that it may be the batch of every step.

        Raises:
            TypeError: It was meant to be another one in each.
        """

    @abc.abstractmethod
    def items(self, state: Any = None) -> Iterator[Any]:
        """An iterator over what is in it.

        Args:
            state: What `state_of` returned; by default the beginning.

        Raises:
            Exception: The state does not fit.
        """

    def state_of(self, items: Iterator[Any]) -> Any:
        """The state of an iterator over it; `None` if it has none."""
        del items

    def stacked_for(
        self, steps: int, batch_size: int | None, stack_size: StackSize
    ) -> int:
        """How many batches to read at once; 0 if they come one by one.

        Args:
            steps: How many are wanted.
            batch_size: Examples of each, if the source does not know better.
            stack_size: How large they may be together.
        """
        del steps, batch_size, stack_size
        return 0

    def in_stacks(self, batches: int) -> Self:
        """The same with so many batches an item, where that is possible."""
        del batches
        return self

    @staticmethod
    def release(items: list[Iterator[Any]]) -> None:
        """Lets go of the iterators in a list."""
        items.clear()


class Arrays(BatchSource):
    """One batch, as it is."""

    is_single = True

    def check(self, plan: InputPlan) -> None:
        """Checks that there need not be a batch for each of several cores."""
        if plan.batches_per_call > 1:
            raise TypeError(
                "With PER_HOST_V2 input_fn should return a Dataset or an "
                "iterable of batches, one for each core. Received: "
                f"{type(self._value).__name__}. Use PER_HOST_V1 for tensors."
            )

    def check_repeated(self) -> None:
        """Checks that it is not what an iterator of TensorFlow began with."""
        tensorflow = sys.modules.get("tensorflow")
        leaves = jax.tree.leaves(self._value)
        if tensorflow is not None and any(
            isinstance(leaf, tensorflow.Tensor) for leaf in leaves
        ):
            raise TypeError(
                "`input_fn` should return a tf.data.Dataset, or an iterable of "
                "batches. Received tensors of TensorFlow, which would be the "
                "batch of every step: without a graph, `get_next()` of an "
                "iterator is called once. Return the dataset itself; where "
                "one batch is meant, return arrays: `tensor.numpy()`."
            )

    def items(self, state: Any = None) -> Iterator[Any]:
        """The batch alone.

        Raises:
            ValueError: It is a list that is no pair, or may be batches.
        """
        if state is not None:
            raise ValueError("Arrays have no state. Received one.")
        if isinstance(self._value, list):
            _check_list(self._value)
        return iter([self._value])


class SourceReader:
    """Reads a source: an iterator that counts, and may have a state.

    It has the user's objects until it is closed, and in no circle: what is
    collected later, on any thread, TensorFlow may not let go of there.

    Args:
        source: The source.
        pair_of: Returns the features and the labels of an item. Defaults to
            `batch.pair_of`.

    Attributes:
        batches: How many batches have been read, without those left out; the
            last item may have fewer than were counted.

    Example:

    >>> reader = SourceReader(Arrays("a batch"))
    >>> next(reader), reader.batches, reader.state()
    ('a batch', 1, None)
    """

    def __init__(self, source: BatchSource, pair_of: PairOf = pair_of):
        self.batches = 0
        self._source = source
        self._pair_of = pair_of
        self._items: Iterator[Any] | None = None

    def open(self, state: Any, batches: int) -> None:
        """Starts to read.

        Args:
            state: What `state` returned.
            batches: How many batches had been read then.

        Raises:
            Exception: The state does not fit.
        """
        self._items = self._source.items(state)
        self.batches = batches

    def state(self) -> Any:
        """The state of what is read; `None` if it has none to ask for."""
        return self._source.state_of(self._opened())

    def batch(self, item: Any) -> Batch:
        """The batch that an item is, or the batches that it has stacked."""
        return Batch.of(item, self._pair_of)

    def leave_out(self, batches: int) -> None:
        """Takes back that so many batches of the last item were read."""
        self.batches -= batches

    def close(self) -> None:
        """Lets go of the user's objects."""
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
    """A list of two is a pair, and must not look like two batches.

    Raises:
        ValueError: It does, or is no pair.
    """
    kinds = {_keys_of_batch(each) for each in value}
    are_batches = len(kinds) == 1 and None not in kinds
    if len(value) != 2 or are_batches:
        looks = ", whose items look like batches" if are_batches else ""
        raise ValueError(
            "A list that `input_fn` returns should have length 2: features and "
            "labels. Received a list of length "
            f"{len(value)}{looks}. Return iter(batches) for batches one after "
            "the other, a tuple (features, labels) for one pair, and a dict "
            "for several features."
        )


def _keys_of_batch(value: Any) -> Any:
    """What two batches have in common; `None` for what is none by its looks."""
    if isinstance(value, Mapping):
        return frozenset(value)
    if isinstance(value, tuple) and len(value) in (2, 3):
        return len(value)
    return None
