"""Stack traces of a process that hangs."""

import contextlib
import sys
import threading
import time
import traceback
import types
from collections.abc import Generator, Iterator
from typing import Any, Self, TypeVar

from keras_tpu_estimator.api.hooks.session import Session
from keras_tpu_estimator.api.hooks.session_run_hook import LoopHook

T = TypeVar("T")


class StallWatch:
    """Prints the stacks of all threads after `timeout_secs` without an event.

    A Python thread prints them. `faulthandler.dump_traceback_later` would also work
    while native code holds the interpreter lock, but it reads stacks without that lock,
    and so crashes a process that is only slow.
    """

    def __init__(self, timeout_secs: float):
        self._timeout_secs = timeout_secs
        self._last = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, name="stall-watch", daemon=True
        )

    def restart(self) -> None:
        """Starts the interval again after an event."""
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        wait = self._timeout_secs
        while not self._is_over.wait(wait):
            passed = time.monotonic() - self._last
            wait = self._timeout_secs - passed
            if wait <= 0:
                print_stacks(f"No step has ended for {passed:.1f} seconds.")
                self.restart()
                wait = self._timeout_secs


class StallHook(LoopHook):
    """A hook that restarts a watch when a run is complete."""

    def __init__(self, watch: StallWatch):
        self._watch = watch

    def run_completed(self, session: Session) -> None:
        """Restarts the watch."""
        del session
        self._watch.restart()


def print_stacks(why: str) -> None:
    """Prints a line and the stacks of all other threads to standard error."""
    frames = sys._current_frames()
    # All frames are read in one call, because running threads continue meanwhile.
    stacks = {ident: _walked(frame) for ident, frame in frames.items()}
    threads = {thread.ident: thread for thread in threading.enumerate()}
    text = [f"{why} The stacks of all threads, the innermost call last:"]
    for ident, stack in stacks.items():
        if ident == threading.get_ident():
            continue
        thread = threads.get(ident)
        text.append(f"Thread {thread.name if thread else ident}:")
        lines = traceback.StackSummary.extract(stack).format()
        text.append("".join(lines).rstrip())
    sys.stderr.write("\n".join(text) + "\n")
    sys.stderr.flush()


def _walked(frame: types.FrameType | None) -> list[tuple[Any, int]]:
    """Returns the frames of a stack and their lines, the outermost first."""
    walked = []
    # The next frame of a running thread may be unrelated.
    while isinstance(frame, types.FrameType):
        walked.append((frame, frame.f_lineno))
        frame = frame.f_back
    return walked[::-1]


def watched(
    items: Generator[T, None, None], timeout_secs: float | None
) -> Generator[T, None, None]:
    """Yields items of a generator, closed at the end, and prints stacks if one takes
    too long to arrive; processing an item may take any time.
    """
    with contextlib.closing(items):
        while True:
            with stalls_shown(timeout_secs):
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item


@contextlib.contextmanager
def stalls_shown(timeout_secs: float | None) -> Iterator[list[LoopHook]]:
    """Prints stacks if a `with` block takes too long; `None` means no limit."""
    if timeout_secs is None:
        yield []
        return
    with StallWatch(timeout_secs) as watch:
        yield [StallHook(watch)]
