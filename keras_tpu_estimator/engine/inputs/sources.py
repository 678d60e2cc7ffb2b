"""Sources of batches: the kinds of values that an `input_fn` returns.

The state of a generator, data loader or other iterable is saved by one of these
protocols, of the iterator or of the object it iterates over:

* `state_dict()` and `load_state_dict(state)`, as in PyTorch's
  `StatefulDataLoader`.
* `get_state()` and `set_state(state)`, as in Grain.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from keras_tpu_estimator.engine.inputs.batch_source import Arrays, BatchSource
from keras_tpu_estimator.engine.inputs.datasets import Dataset, in_dense_tensors
from keras_tpu_estimator.engine.inputs.deployment import InputPlan
from keras_tpu_estimator.engine.inputs.other_libraries import (
    allow_worker_processes,
    check_yields_batches,
)

_METHODS = (("state_dict", "load_state_dict"), ("get_state", "set_state"))


class Stream(BatchSource):
    """An iterable of batches, which may reuse their arrays.

    Example:

    >>> class Numbers:
    ...     start = 0
    ...     def __iter__(self):
    ...         for self.start in range(self.start + 1, 5):
    ...             yield self.start
    ...     def state_dict(self):
    ...         return {"start": self.start}
    ...     def load_state_dict(self, state):
    ...         self.start = state["start"]
    >>> numbers = Stream(Numbers())
    >>> items = numbers.items()
    >>> next(items), next(items)
    (1, 2)
    >>> next(Stream(Numbers()).items(numbers.state_of(items)))
    3
    """

    may_stay = False

    def check(self, plan: InputPlan) -> None:
        """Accepts every plan."""

    def items(self, state: dict[str, Any] | None = None) -> Iterator[Any]:
        """Returns an iterator over the batches, from a state if there is one."""
        if state is None:
            return iter(self._value)
        ((save, saved),) = state.items()
        load = dict(_METHODS)[save]
        if hasattr(self._value, load):
            # The state of an iterable takes effect when iteration begins.
            getattr(self._value, load)(saved)
            return iter(self._value)
        items = iter(self._value)
        getattr(items, load)(saved)
        return items

    def state_of(self, items: Iterator[Any]) -> dict[str, Any] | None:
        """Returns the name of the protocol and the state."""
        for owner in (self._value, items):
            for save, load in _METHODS:
                if hasattr(owner, save) and hasattr(owner, load):
                    return {save: getattr(owner, save)()}
        return None


def source_of(value: Any) -> BatchSource:
    """Returns the source for a value.

    Args:
        value: A dataset, an iterable of batches, or one batch.

    Raises:
        TypeError: It yields single examples.

    Example:

    >>> type(source_of(iter([1, 2]))).__name__, type(source_of([1, 2])).__name__
    ('Stream', 'Arrays')
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(value, tensorflow.data.Dataset):
        return Dataset(in_dense_tensors(value))
    check_yields_batches(value)
    allow_worker_processes(value)
    if isinstance(value, Mapping | tuple | list | str | bytes):
        return Arrays(value)
    if hasattr(value, "__iter__") and not hasattr(value, "dtype"):
        return Stream(value)
    return Arrays(value)


def source_of_call(call: Callable[[], Any], number: int) -> BatchSource:
    """Returns the source for the result of a call, regardless of its number."""
    del number
    return source_of(call())
