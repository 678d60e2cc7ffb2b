"""Results on their way from the devices to functions of the host."""

import concurrent.futures
from collections.abc import Callable
from typing import Any, Self


class Outfeed:
    """Gives results to a function on a thread of its own, in order.

    Args:
        consume: Called with what `put` was called with.
        depth: How many results may wait. Defaults to 2.

    Raises:
        Exception: An error of `consume` is raised by the next `put`, or at
            the end of the `with` block.
    """

    def __init__(self, consume: Callable[..., None], depth: int = 2):
        self._consume = consume
        self._depth = depth
        self._pending: list[concurrent.futures.Future[None]] = []
        self._thread = concurrent.futures.ThreadPoolExecutor(
            1, thread_name_prefix="outfeed"
        )

    def put(self, *result: Any) -> None:
        """Hands over a result; waits while too many are pending."""
        self._pending.append(self._thread.submit(self._consume, *result))
        self.wait(self._depth)

    def wait(self, pending: int = 0) -> None:
        """Waits until no more than `pending` results are left."""
        while len(self._pending) > pending:
            self._pending.pop(0).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type | None, *details: object) -> None:
        try:
            if error_type is None:
                self.wait()
        finally:
            self._thread.shutdown(wait=True, cancel_futures=True)
