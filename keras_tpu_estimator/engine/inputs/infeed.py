"""Work done ahead of its use, on a thread of its own."""

import collections
import threading
import time
from collections.abc import Callable
from typing import Generic, Self, TypeVar

T = TypeVar("T")

# How long `close` waits for a producer that is deep in the user's code.
_PATIENCE_SECS = 5.0
# How often who waits asks whether to go on.
_ASK_SECS = 0.1


class Infeed(Generic[T]):
    """Iterates over what a function produces, some items ahead.

    Args:
        produce: Called again and again; `None` is the end.
        depth: How many items may wait, as a function of the newest if it is
            not a number. Defaults to 2.
        is_cancelled: Whether to end when no item is ready, instead of waiting
            for one; asked again and again. Defaults to never.
        give_up: Called by `close`, lest `produce` wait for others. Defaults to
            nothing.

    Raises:
        Exception: An error of `produce` is raised as itself, after the items
            before it.

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
    ):
        self._produce = produce
        self._give_up = give_up
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
        with self._changed:
            since = time.monotonic()
            while not self._changed.wait_for(
                lambda: self._ready or self._is_over, _ASK_SECS
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
        """Whether `take_ready` returns an item; once true, it stays so."""
        return bool(self._ready)

    def take_ready(
        self, is_wanted: Callable[[T], bool] = lambda item: True
    ) -> T | None:
        """Returns the next item if it is available, or else `None`.

        Args:
            is_wanted: Whether to take an item. Defaults to any.
        """
        with self._changed:
            if not self._ready or not is_wanted(self._ready[0]):
                return None
            self._changed.notify_all()
            return self._ready.popleft()

    def has_ready(self, items: int) -> bool:
        """Whether that many items are ready, or all that are left."""
        return len(self._ready) >= items or self._is_over

    def gather(self, items: int, gap_secs: float) -> bool:
        """Waits until items are ready, as long as they keep coming.

        Args:
            items: How many to wait for; fewer at the end.
            gap_secs: How long to wait for each.

        Returns:
            Whether it waited in vain: none came.
        """
        begun, is_vain = len(self._ready), False
        with self._changed:
            # The thread need not wake the caller for each item.
            self._awaited = items
            while (ready := len(self._ready)) < items and not self._is_over:
                self._changed.wait(gap_secs)
                if len(self._ready) == ready:
                    is_vain = ready == begun
                    break
            self._awaited = 1
        return is_vain

    def take_waited_secs(self) -> float:
        """How long items were waited for since this was asked last."""
        waited, self._waited = self._waited, 0.0
        return waited

    def close(self) -> None:
        """Ends the thread; items that wait are dropped."""
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
                self._hand_over(item)
        except BaseException as error:  # Raised again where it is awaited.
            self._error = error
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _hand_over(self, item: T) -> None:
        depth = self._depth(item) if callable(self._depth) else self._depth
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < depth or self._is_over)
            if not self._is_over:
                self._ready.append(item)
                if len(self._ready) >= self._awaited:
                    self._changed.notify_all()
