"""The number of batches that one run of `predict` contains."""

import time
from collections.abc import Callable
from typing import Any

from keras_tpu_estimator.engine.inputs.stacking import StackSize, even_share
from keras_tpu_estimator.runs.prediction_batches import Padded

# This number of batches hides the time between runs.
MOST_BATCHES = 32
# The bytes of the features and predictions of one run. Larger batches run singly.
_STACK_SIZE = StackSize(2**21, most=2**22)
# The first wait of a batch for the next one.
_PATIENCE_SECS = 0.001
# A result should not wait longer for other batches.
_LONG_SECS = 0.1


class Rooms:
    """The number of batches that the programs of one call have room for.

    It depends only on the order of the batches, so that each call predicts the
    same input with the same programs, whatever the time it takes. Batches of the
    first shape have the usual room. A later shape, such as that of a smaller last
    batch, has room for one batch until the shape repeats.

    Args:
        batch_bytes: Returns the bytes of a batch and of its predictions.
        is_single: Whether each run has one batch.

    Attributes:
        newest: The last result of `of` above 1, or 1.
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
    """The number of batches in the next run, which shrinks if results are slow.

    A run is at most as large as all earlier runs together.

    Args:
        clock: Returns the time in seconds.

    Attributes:
        size: The number of batches that the next run should have.

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
        """Measures the wait for a run of some batches in a `with` block."""
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
    """The time that a batch waits for the next one, which may join its run.

    Each wait in vain halves the time, so that an input that waits for the
    result of each batch is not delayed for long.

    Attributes:
        secs: The seconds to wait.

    Example:

    >>> patience = Patience()
    >>> patience.note(is_vain=True)
    >>> patience.secs
    0.0005
    """

    def __init__(self) -> None:
        self.secs = _PATIENCE_SECS

    def note(self, is_vain: bool) -> None:
        """Records whether the last wait was in vain."""
        self.secs = self.secs / 2 if is_vain else _PATIENCE_SECS
