"""The ledgers of this process, one for each directory, and their lines on the disk.

A thread writes the line of a run while `train` runs, so that a killed run has left the
time of its last steps.
"""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

from keras_tpu_estimator.base.common import ledger, notebook
from keras_tpu_estimator.base.common.ledger import Charging, TimeLedger
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.files.summary.run_times import (
    FILE_NAME,
    RunTimes,
    RunTimesFile,
    TimeTable,
)
from keras_tpu_estimator.runs.position_saver import Start

# The interval between writes: a share of the time of the run, within these bounds.
_LEAST_SECS, _SHARE, _MOST_SECS = 0.025, 0.01, 1.0

_logger = logging.getLogger("keras_tpu_estimator")


class Run:
    """The training of one directory by this process, and the evaluations meanwhile."""

    def __init__(self, directory: str, before: float):
        """Begins a run whose start took `before` seconds."""
        self.ledger = TimeLedger(before)
        self.is_training = False
        # The evaluation between two calls of `train`, whose time is charged.
        self.evaluation: object = None
        self._directory = directory
        self._began = time.time() - before
        self._position: int | None = None
        self._earlier: list[RunTimes] = []

    def table(self) -> TimeTable:
        """Returns the times of all runs in the directory so far."""
        return TimeTable.from_runs([*self._earlier, self._times()])

    @contextlib.contextmanager
    def recorded(self, has_checkpoint: bool) -> Iterator[None]:
        """Writes the times during a block and after it, as soon as a checkpoint exists.

        A call that fails before its first checkpoint leaves no file.
        """
        saves = self.ledger.saves

        def is_due() -> bool:
            return has_checkpoint or self.ledger.saves > saves

        line = _Line(self._opened, self._times, is_due)
        if has_checkpoint:
            line.open()  # The file may belong to another run by now.
        elif self._position is not None:
            self._begin_again()  # The checkpoints were removed.
        with line.written_until(self._interval, lambda: self.ledger.saves):
            yield

    @contextlib.contextmanager
    def recorded_again(self) -> Iterator[None]:
        """Writes the times during a block and after it, if the run has the last line.

        A URL receives them at the end of the next call of `train`.
        """
        path = os.path.join(self._directory, FILE_NAME)
        if (
            self._position is None
            or paths.is_url(self._directory)
            or not paths.is_file(path)
        ):
            yield
            return
        line = _Line(self._reopened, self._times, lambda: True)
        with line.written_until(self._interval, lambda: 0):
            yield

    def _opened(self) -> RunTimesFile:
        """Opens the file, and begins a new run if another one has followed this."""
        file = RunTimesFile(self._directory, self._position)
        if file.is_new:
            if self._position is not None:
                self._begin_again()
            self._position, self._earlier = file.position, file.earlier()
        return file

    def _begin_again(self) -> None:
        """Begins a new run, on the thread that charges the ledger."""
        step = self.ledger.step
        self.ledger.restart()
        self.ledger.resume(step)
        self._began, self._position = time.time(), None

    def _reopened(self) -> RunTimesFile | None:
        """Opens the file, unless another run has followed this."""
        file = RunTimesFile(self._directory, self._position)
        if file.is_new:
            file.close()
            return None
        return file

    def _interval(self) -> float:
        elapsed = time.time() - self._began
        return min(max(_LEAST_SECS, _SHARE * elapsed), _MOST_SECS)

    def _times(self) -> RunTimes:
        return RunTimes.from_ledger(self._began, self.ledger)


class _Line:
    """The line of a run during one call, which is opened when it `is_due`."""

    def __init__(
        self,
        opened: Callable[[], RunTimesFile | None],
        times: Callable[[], RunTimes],
        is_due: Callable[[], bool],
    ):
        self._opened, self._times, self._is_due = opened, times, is_due
        self._file: RunTimesFile | None = None
        self._is_over = False

    def open(self) -> None:
        """Opens the file, or logs why it cannot."""
        try:
            self._file = self._opened()
        except Exception as error:  # noqa: BLE001 - stores raise any class
            self._give_up("The times of this run are not recorded", error)
        self._is_over = self._file is None

    @contextlib.contextmanager
    def written_until(
        self, interval: Callable[[], float], saves: Callable[[], int]
    ) -> Iterator[None]:
        """Writes the line on a thread until the end of a block, and after it.

        If the number of `saves` has changed, a URL receives the file.
        """

        def write() -> None:
            before = saves()
            while not end.wait(interval()) and not self._is_over:
                self._write()
                if self._file is not None and saves() != before:
                    before = saves()
                    self._file.show()

        end = threading.Event()
        thread = threading.Thread(target=write, name="ledger", daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()
            self._write()
            if self._file is not None:
                self._file.show()
                self._file.close()

    def _write(self) -> None:
        if self._file is None and not self._is_over and self._is_due():
            self.open()
        if self._file is None or self._is_over:
            return
        # Otherwise the other thread has changed the ledger meanwhile.
        with contextlib.suppress(ValueError):
            times = self._times()
            try:
                self._file.write(times)
            except OSError as error:
                self._give_up("The times of this run cannot be written", error)

    def _give_up(self, event: str, error: Exception) -> None:
        self._is_over = True
        _logger.warning(
            "%s: %s. Training continues without %s.", event, error, FILE_NAME
        )


_RUNS: dict[str, Run] = {}
_LOCK = threading.Lock()


def _forget() -> None:
    """Begins without runs in a forked process."""
    global _LOCK
    _LOCK = threading.Lock()
    _RUNS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def run_in(directory: str) -> Run:
    """Returns this process's run in a directory.

    The first run begins with the process, and others with their first call. So does
    the first run in an interactive session, which waits for the user before.
    """
    path = paths.canonical(directory)
    with _LOCK:
        if path not in _RUNS:
            is_interactive = hasattr(sys, "ps1") or notebook.is_here()
            is_later = bool(_RUNS) or is_interactive
            _RUNS[path] = Run(directory, 0.0 if is_later else ledger.process_age())
        return _RUNS[path]


@contextlib.contextmanager
def training(directory: str) -> Iterator[None]:
    """Charges the time of a call of `train` in this thread."""
    run = run_in(directory)
    if run.is_training:
        # The lock of the directory ends this call, unless the system has no locks.
        with Charging(None):
            yield
        return
    run.is_training, run.evaluation = True, None
    run.ledger.leave_all()
    run.ledger.enter(ledger.OTHER)
    try:
        with Charging(run.ledger):
            yield
    finally:
        run.ledger.leave_all()
        run.is_training = False


@contextlib.contextmanager
def evaluating(directory: str) -> Iterator[None]:
    """Charges the time of an evaluation, in training or between its calls."""
    in_training = ledger.current()
    if in_training is not None:
        in_training.enter(ledger.EVALUATION)
        try:
            with Charging(None):
                yield
        finally:
            in_training.leave()
        return
    run, this = run_in(directory), object()
    if run.is_training or run.evaluation is not None:
        yield
        return
    run.evaluation = this
    run.ledger.enter(ledger.EVALUATION)
    try:
        with run.recorded_again():
            yield
    finally:
        if run.evaluation is this:
            run.evaluation = None
            run.ledger.leave_all()


@contextlib.contextmanager
def recording(directory: str, start: Start, is_writer: bool) -> Iterator[None]:
    """Writes the times of a call of `train`.

    Only one process of a job writes them.
    """
    charged = ledger.current()
    if charged is None:
        yield
        return
    charged.resume(start.step)
    with (
        run_in(directory).recorded(start.checkpoint is not None)
        if is_writer
        else contextlib.nullcontext()
    ):
        yield
