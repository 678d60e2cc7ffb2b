"""A queue of items that a thread produces ahead of their use."""

import collections
import threading
import time
from collections.abc import Callable
from typing import Generic, Self, TypeVar

T = TypeVar("T")

# The time that `close` waits for a producer in the user's code.
_PATIENCE_SECS = 5.0
# The interval at which a waiting consumer checks for cancellation.
_POLL_SECS = 0.1


class Infeed(Generic[T]):
    """Iterates over the results of a function, which a thread calls ahead.

    Args:
        produce: Returns the next item, or `None` at the end.
        depth: The number of items that may wait, or a function of the newest
            item that returns it.
        is_cancelled: Whether to end instead of waiting for an item. It is
            called repeatedly.
        give_up: Called by `close`, so that `produce` stops waiting for other
            processes.
        finish: Called with each item, by the thread that takes it. Its result
            takes the place of the item. Defaults to no change.

    Raises:
        Exception: An error of `produce` is raised after the items before it.

    Example:

    >>> numbers = iter([1, 2, 3])
    >>> with Infeed(lambda: next(numbers, None)) as infeed:
    ...     list(infeed)
    [1, 2, 3]
    """

    def __init__(
        self,
        produce: Callable[[], T | None],
        depth: int | Callable[[T], int] = 2,
        is_cancelled: Callable[[], bool] = lambda: False,
        give_up: Callable[[], None] = lambda: None,
        finish: Callable[[T], T] = lambda item: item,
    ):
        self._produce = produce
        self._give_up = give_up
        self._finish = finish
        self._is_cancelled = is_cancelled
        self._depth = depth
        self._ready: collections.deque[T] = collections.deque()
        self._changed = threading.Condition()
        self._is_over = False
        self._awaited = 1
        self._waited = 0.0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="infeed", daemon=True)
        self._thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return self._finish(self._next())

    def _next(self) -> T:
        with self._changed:
            since = time.monotonic()
            while not self._changed.wait_for(
                lambda: self._ready or self._is_over, _POLL_SECS
            ):
                if self._is_cancelled():
                    raise StopIteration
            self._waited += time.monotonic() - since
            if self._ready:
                item = self._ready.popleft()
                self._changed.notify_all()
                return item
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        raise StopIteration

    @property
    def is_ready(self) -> bool:
        """Whether `take_ready` returns an item. Once true, it remains true."""
        return bool(self._ready)

    def take_ready(
        self, is_wanted: Callable[[T], bool] = lambda item: True
    ) -> T | None:
        """Returns the next item if it is ready and wanted, or else `None`."""
        with self._changed:
            if not self._ready or not is_wanted(self._ready[0]):
                return None
            self._changed.notify_all()
            item = self._ready.popleft()
        return self._finish(item)

    def has_ready(self, items: int) -> bool:
        """Returns whether that many items are ready, or all remaining ones."""
        return len(self._ready) >= items or self._is_over

    def gather(self, items: int, gap_secs: float) -> bool:
        """Waits until items are ready, while new ones arrive.

        Args:
            items: The number of items; fewer suffice at the end.
            gap_secs: The maximum wait for each item.

        Returns:
            Whether the wait was in vain, because no item arrived.
        """
        begun, is_vain = len(self._ready), False
        with self._changed:
            # The thread should not wake the caller for each item.
            self._awaited = items
            while (ready := len(self._ready)) < items and not self._is_over:
                self._changed.wait(gap_secs)
                if len(self._ready) == ready:
                    is_vain = ready == begun
                    break
            self._awaited = 1
        return is_vain

    def take_waited_secs(self) -> float:
        """Returns the time spent waiting for items since the last call."""
        waited, self._waited = self._waited, 0.0
        return waited

    def close(self) -> None:
        """Ends the thread, and discards waiting items."""
        with self._changed:
            self._is_over = True
            self._ready.clear()
            self._changed.notify_all()
        self._give_up()
        self._thread.join(_PATIENCE_SECS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            while not self._is_over:
                item = self._produce()
                if item is None:
                    break
                self._enqueue(item)
        except BaseException as error:  # `__next__` raises it again.
            self._error = error
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _enqueue(self, item: T) -> None:
        depth = self._depth(item) if callable(self._depth) else self._depth
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < depth or self._is_over)
            if not self._is_over:
                self._ready.append(item)
                if len(self._ready) >= self._awaited:
                    self._changed.notify_all()
