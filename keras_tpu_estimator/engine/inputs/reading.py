"""What one call of `input_fn` returned, read item by item."""

from collections.abc import Iterator
from typing import Any
from typing import Self

from keras_tpu_estimator.engine.inputs.batch import Example
from keras_tpu_estimator.engine.inputs.form import Arrays
from keras_tpu_estimator.engine.inputs.form import Form


class Reading:
    """An iterator that counts, and whose state can be kept if it has one.

    Args:
        form: What is read.

    Attributes:
        batches: How many batches have been read, without those left out; the
            last item may have fewer than were counted.

    Example:

    >>> reading = Reading(Arrays("a batch"))
    >>> next(reading), reading.batches, reading.state()
    ('a batch', 1, None)
    """

    def __init__(self, form: Form):
        self.batches = 0
        self._form = form
        self._items: Iterator[Any] | None = None

    def open(self, state: Any, batches: int) -> None:
        """Starts to read.

        Args:
            state: What `state` returned.
            batches: How many batches had been read then.

        Raises:
            Exception: The state does not fit.
        """
        self._items = self._form.items(state)
        self.batches = batches

    def state(self) -> Any:
        """The state of what is read; `None` if it has none to ask for."""
        return self._form.state_of(self._opened())

    def examples(self) -> Iterator[Example]:
        """The items that are left, each as the batch that it is."""
        for item in self:
            yield self._form.example(item)

    def leave_out(self, batches: int) -> None:
        """Takes back that so many batches of the last item were read."""
        self.batches -= batches

    def close(self) -> None:
        """Lets go of the user's objects."""
        release = self._form.release
        last = [] if self._items is None else [self._items]
        self._form, self._items = Arrays(()), iter(())
        release(last)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        item = next(self._opened())
        self.batches += self._form.stacked or 1
        return item

    def _opened(self) -> Iterator[Any]:
        if self._items is None:
            self._items = self._form.items()
        return self._items
