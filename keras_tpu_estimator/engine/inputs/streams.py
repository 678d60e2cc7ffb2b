"""Generators, data loaders and other iterables of batches.

Their state is kept by whichever protocol they have:

* `state_dict()` and `load_state_dict(state)`, as in PyTorch's
  `StatefulDataLoader`.
* `get_state()` and `set_state(state)`, as in Grain.

The methods are looked for in the iterator, and then in what it is made of.
"""

from collections.abc import Iterator
from typing import Any

from keras_tpu_estimator.engine.inputs.batch_source import BatchSource
from keras_tpu_estimator.engine.inputs.deployment import InputPlan

_METHODS = (("state_dict", "load_state_dict"), ("get_state", "set_state"))


class Stream(BatchSource):
    """An iterable of batches, which may fill the same arrays again.

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
        """Streams are allowed everywhere."""

    def items(self, state: dict[str, Any] | None = None) -> Iterator[Any]:
        """An iterator over the batches, in a state if one is given."""
        if state is None:
            return iter(self._value)
        ((save, saved),) = state.items()
        load = dict(_METHODS)[save]
        if hasattr(self._value, load):
            # Before it is iterated over, for that is when it takes effect.
            getattr(self._value, load)(saved)
            return iter(self._value)
        items = iter(self._value)
        getattr(items, load)(saved)
        return items

    def state_of(self, items: Iterator[Any]) -> dict[str, Any] | None:
        """The name of the protocol, and the state."""
        for owner in (self._value, items):
            for save, load in _METHODS:
                if hasattr(owner, save) and hasattr(owner, load):
                    return {save: getattr(owner, save)()}
        return None
