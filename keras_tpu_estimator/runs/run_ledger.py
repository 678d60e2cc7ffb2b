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
from collections.abc import Iterator

from keras_tpu_estimator.base.common import ledger, notebook
from keras_tpu_estimator.base.common.ledger import Charging, TimeLedger
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.files.formats import loading
from keras_tpu_estimator.files.summary.metric_writer import SeveralWriters
from keras_tpu_estimator.files.summary.run_times import (
    FILE_NAME,
    RunTimes,
    RunTimesFile,
    TimeTable,
)
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.loop_state import LoopState

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
    def recorded(self, begins: bool = True) -> Iterator[None]:
        """Writes the times during a block and after it.

        Unless it `begins`, the run must have a line.
        """
        file = None
        try:
            file = self._opened() if begins else self._reopened()
        except Exception as error:  # noqa: BLE001 - stores raise any class
            _logger.warning(
                "The times of this run are not recorded, because the file cannot be "
                "opened: %s. Move the file to another directory.",
                error,
            )
        if file is None:
            yield
            return
        end = threading.Event()
        thread = threading.Thread(
            target=self._write_until, args=(end, file), name="ledger", daemon=True
        )
        with contextlib.closing(file):
            thread.start()
            try:
                yield
            finally:
                end.set()
                thread.join()
                self._write(file)
                file.show()

    def _opened(self) -> RunTimesFile:
        """Opens the file, and begins a new run if another one has followed this."""
        file = RunTimesFile(self._directory, self._position)
        if file.is_new:
            if self._position is not None:
                step = self.ledger.step
                self.ledger.restart()
                self.ledger.resume(step)
                self._began = time.time()
            self._position, self._earlier = file.position, file.earlier()
        return file

    def _reopened(self) -> RunTimesFile | None:
        """Opens the file if it has a line of this run, which is the last one."""
        if (
            self._position is None
            or paths.is_url(self._directory)
            or not paths.is_file(os.path.join(self._directory, FILE_NAME))
        ):
            return None
        file = RunTimesFile(self._directory, self._position)
        if file.is_new:
            file.close()
            return None
        return file

    def _write_until(self, end: threading.Event, file: RunTimesFile) -> None:
        saves = self.ledger.saves
        while not end.wait(self._interval()) and self._write(file):
            if saves != self.ledger.saves:
                saves = self.ledger.saves
                file.show()

    def _interval(self) -> float:
        elapsed = time.time() - self._began
        return min(max(_LEAST_SECS, _SHARE * elapsed), _MOST_SECS)

    def _write(self, file: RunTimesFile) -> bool:
        """Writes the line, and returns whether another attempt makes sense."""
        try:
            file.write(self._times())
        except ValueError:
            # The other thread has changed the ledger meanwhile.
            return True
        except OSError as error:
            _logger.warning("The times of this run cannot be written: %s.", error)
            return False
        return True

    def _times(self) -> RunTimes:
        return RunTimes.from_ledger(self._began, self.ledger)


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
    if run.is_training:  # The lock of the directory ends this call.
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
        with run.recorded(begins=False):
            yield
    finally:
        if run.evaluation is this:
            run.evaluation = None
            run.ledger.leave_all()


@contextlib.contextmanager
def recording(context: EstimatorContext, checkpoint: str | None) -> Iterator[None]:
    """Writes the times of a call of `train` that continues at a checkpoint."""
    run, charged = run_in(context.model_dir), ledger.current()
    if charged is None:
        yield
        return
    charged.resume(0 if checkpoint is None else loading.step_of(checkpoint))
    with run.recorded() if context.hosts.is_chief else contextlib.nullcontext():
        yield


def write_times(
    context: EstimatorContext, writer: SeveralWriters, state: LoopState
) -> None:
    """Writes the times of all runs with the metric writers."""
    numbers = run_in(context.model_dir).table().scalars()
    loss = {"loss": float(state.results.loss)}
    is_original = context.front_end.has_original_summaries
    writer.write_times(state.results.step, loss | numbers, is_original)
