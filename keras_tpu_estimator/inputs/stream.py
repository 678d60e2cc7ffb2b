"""What one call of `input_fn` returned, read item by item."""

import threading
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from keras_tpu_estimator.inputs import iterator_state
from keras_tpu_estimator.inputs.chunks import stacked_dataset
from keras_tpu_estimator.inputs.forms import is_dataset
from keras_tpu_estimator.inputs.forms import is_stream


class Stream:
    """An iterator that counts, and whose state can be kept if it has one.

    Args:
        value: A dataset, an iterable of batches, or one batch.
        stacked: How many batches of a dataset an item is made of. Defaults to
            0, for items that are batches.

    Attributes:
        batches: How many batches have been read; the last item may have
            fewer than were counted.

    Example:

    >>> stream = Stream(iter(["a", "b"]))
    >>> next(stream), stream.batches, stream.state()
    ('a', 1, None)
    """

    def __init__(self, value: Any, stacked: int = 0):
        self.batches = 0
        self._batches_per_item = stacked or 1
        self._items: Iterable[Any] | None = value
        self._iterator: Iterator[Any] | None = None
        if stacked:
            self._items = stacked_dataset(value, stacked)
        elif not (is_dataset(value) or is_stream(value)):
            self._items = [value]

    def open(self, state: Any = None, batches: int = 0) -> None:
        """Starts to read.

        Args:
            state: What `state` returned, or `None` for the beginning.
            batches: How many batches had been read then.

        Raises:
            Exception: The state does not fit.
        """
        self._iterator = iterator_state.opened(self._items, state)
        self.batches = batches

    def state(self) -> Any:
        """The state of what is read; `None` if it has none to ask for."""
        if not iterator_state.has_state(self._items, self._iterator):
            return None
        return iterator_state.state_of(self._items, self._iterator)

    def close(self) -> None:
        """Lets go of the user's objects."""
        is_slow = is_dataset(self._items)
        last = [self._iterator]
        self._items, self._iterator = (), iter(())
        if is_slow:
            # TensorFlow waits here for a thread that tunes the dataset; that
            # looks for its end at times that double, up to once a minute, and
            # often misses being woken for it.
            threading.Thread(
                target=last.clear, name="deletion", daemon=True
            ).start()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._iterator is None:
            self.open()
        item = next(self._iterator)
        self.batches += self._batches_per_item
        return item
