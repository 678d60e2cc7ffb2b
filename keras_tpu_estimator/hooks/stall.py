"""Telling where a program hangs."""

import contextlib
import faulthandler
import sys
from collections.abc import Iterable
from collections.abc import Iterator
from typing import TypeVar

from keras_tpu_estimator.hooks.session_run_hook import SessionRunContext
from keras_tpu_estimator.hooks.session_run_hook import SessionRunHook
from keras_tpu_estimator.hooks.session_run_hook import SessionRunValues

T = TypeVar("T")


class StallHook(SessionRunHook):
    """Has the stacks of all threads printed when no run ends for long.

    Python's `faulthandler` prints them, also while native code hangs.

    Args:
        timeout_secs: Seconds without the end of a run.
    """

    def __init__(self, timeout_secs: float):
        self._timeout_secs = timeout_secs
        self.watch()

    def watch(self) -> None:
        """Starts to count anew."""
        faulthandler.dump_traceback_later(
            self._timeout_secs, repeat=True, file=sys.__stderr__
        )

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Counts anew."""
        del run_context, run_values
        self.watch()


def watched(items: Iterable[T], timeout_secs: float | None) -> Iterator[T]:
    """Shows stalls while the next item is awaited.

    Args:
        items: What is iterated over.
        timeout_secs: As in `StallHook`, or `None` for never.
    """
    iterator = iter(items)
    while True:
        with stalls_shown(timeout_secs):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item


@contextlib.contextmanager
def stalls_shown(timeout_secs: float | None) -> Iterator[list[SessionRunHook]]:
    """Shows stalls for the time of a `with` block.

    Args:
        timeout_secs: As in `StallHook`, or `None` for never.

    Yields:
        The hooks to call.
    """
    if timeout_secs is None:
        yield []
        return
    try:
        yield [StallHook(timeout_secs)]
    finally:
        faulthandler.cancel_dump_traceback_later()
