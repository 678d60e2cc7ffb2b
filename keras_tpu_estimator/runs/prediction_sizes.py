"""The number of batches that one run of `predict` contains."""

import time
from collections.abc import Callable
from typing import Any

from keras_tpu_estimator.engine.inputs.stacking import StackSize, even_share
from keras_tpu_estimator.runs.padded_steps import Padded

# Enough for the time between runs not to count.
MOST_BATCHES = 32
# Bytes of the features and predictions of one run. Larger batches come alone.
_STACK_SIZE = StackSize(2**21, most=2**22)
# The first wait of a batch for the next one.
_PATIENCE_SECS = 0.001
# Results should not wait longer for those of other batches.
_LONG_SECS = 0.1


class Rooms:
    """The number of batches that the programs of one call have room for.

    It follows from the order of the batches only, so that the same input is
    predicted by the same programs in each call, whatever the time it takes.
    Batches of the first shape have the usual room. A later shape, such as that
    of a smaller last batch, has room for one until it comes again.

    Args:
        batch_bytes: Returns the bytes of a batch and of its predictions.
        is_single: Whether batches come one at a time.

    Attributes:
        newest: The room that was found last, or 1.
    """

    def __init__(self, batch_bytes: Callable[[Padded], int], is_single: bool = False):
        self._batch_bytes = batch_bytes
        self._is_single = is_single
        self._known: dict[Any, int | None] = {}
        self.newest = 1

    def of(self, padded: Padded) -> int:
        """Returns the room for a run that begins with a batch."""
        if self._is_single:
            return 1
        shapes = padded.shapes
        is_later = bool(self._known) and shapes not in self._known
        room = self._known.setdefault(shapes, None)
        if is_later:
            return 1
        if room is None:
            size = self._batch_bytes(padded)
            room = self.newest = self._known[shapes] = even_share(
                MOST_BATCHES, size, _STACK_SIZE
            )
        return room


class RunSizes:
    """The number of batches in the next run, as long as results come soon.

    A run is at most as large as all runs before it together.

    Args:
        clock: Returns the time in seconds. Defaults to `time.monotonic`.

    Attributes:
        size: How many batches the next run should have, if there is room.

    Example:

    >>> sizes = RunSizes(clock=iter([0.0, 0.01, 5.0, 6.0]).__next__)
    >>> found = []
    >>> for batches in (8, 8):
    ...     with sizes.awaited(batches):
    ...         found.append(sizes.size)
    >>> found, sizes.size
    ([1, 8], 4)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.size = 1
        self._clock = clock
        self._done = 0
        self._since = 0.0
        self._batches = 0

    def awaited(self, batches: int) -> "RunSizes":
        """Measures how long a run is awaited in a `with` block.

        Args:
            batches: How many batches the run has.
        """
        self._batches = batches
        return self

    def __enter__(self) -> None:
        self._since = self._clock()

    def __exit__(self, *exception: object) -> None:
        waited = self._clock() - self._since
        self._done += self._batches
        if waited > _LONG_SECS:
            self.size = max(1, self.size // 2)
        else:
            self.size = min(MOST_BATCHES, self._done)


class Patience:
    """The time that a batch waits for the next one, to join its run.

    Each wait in vain halves the time, so that an input that waits for the
    result of each batch is not delayed for long.

    Attributes:
        secs: Seconds to wait.

    Example:

    >>> patience = Patience()
    >>> patience.note(is_vain=True)
    >>> patience.secs
    0.0005
    """

    def __init__(self) -> None:
        self.secs = _PATIENCE_SECS

    def note(self, is_vain: bool) -> None:
        """Notes whether the last wait was in vain."""
        self.secs = self.secs / 2 if is_vain else _PATIENCE_SECS
