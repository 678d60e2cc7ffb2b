"""The file `run_times.jsonl`: what the time of all runs in a directory went into.

Each run has one line of fixed length, which it rewrites in place, so that a killed run
has left its line. Readers skip lines that they cannot parse.
"""

import dataclasses
import errno
import json
import math
import os
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from keras_tpu_estimator.base.common.ledger import (
    ACCOUNTS,
    LOST_STEPS,
    STEPS,
    StepSeconds,
    TimeLedger,
)
from keras_tpu_estimator.base.storage import paths, shared_files
from keras_tpu_estimator.base.storage.growing_files import GrowingFile, growing

FILE_NAME = "run_times.jsonl"
_LINE_BYTES = 2048
_MOST = 1e12
# A directory may have many runs, but not a file of any size.
_MOST_BYTES = 2**24
DOWN = "down"
# The rows of the table, of which each account is one.
ROWS = (*ACCOUNTS, DOWN)
# Their names begin with this among other metrics.
PREFIX = "time/"


@dataclasses.dataclass(frozen=True)
class RunTimes:
    """The times of one run: the calls of `train` of one process.

    `began` is in seconds since 1970. `seconds` has all accounts, which add up to the
    time of the run. `saving` is the time that other threads took for saving.
    """

    began: float
    seconds: Mapping[str, float]
    steps: StepSeconds
    saving: float

    def __post_init__(self) -> None:
        numbers = (self.began, self.saving, *self.seconds.values())
        numbers = (*numbers, *(n for point in self.steps.points for n in point))
        if not all(0 <= number < _MOST for number in numbers):
            raise ValueError(
                f"Steps and seconds must be from 0 to {_MOST:.0e}. Received: {self!r}. "
                "Pass seconds since 1970 and durations."
            )

    @classmethod
    def from_ledger(cls, began: float, ledger: TimeLedger) -> Self:
        """Returns the times of a run so far; any thread may call this."""
        seconds = ledger.seconds()
        return cls(
            began, seconds, ledger.steps_after(seconds[STEPS]), ledger.background
        )

    @classmethod
    def parse(cls, line: bytes) -> Self | None:
        """Returns the times in a line, or `None` if it is not a valid one."""
        try:
            fields = json.loads(line)
            seconds = fields["seconds"]
            points = [(int(step), float(secs)) for step, secs in fields["steps"]]
            return cls(
                float(fields["began"]),
                {name: float(seconds.get(name, 0.0)) for name in ACCOUNTS},
                StepSeconds(tuple(points)),
                float(fields["saving"]),
            )
        except (
            *(ValueError, TypeError, KeyError, AttributeError),
            *(OverflowError, RecursionError),
        ):
            return None

    def as_line(self) -> bytes:
        """Returns a line of fixed length."""
        fields = {
            "began": round(self.began, 3),
            "seconds": {n: round(secs, 4) for n, secs in self.seconds.items() if secs},
            "steps": [(step, round(secs, 4)) for step, secs in self.steps.points],
            "saving": round(self.saving, 4),
        }
        return json.dumps(fields).encode().ljust(_LINE_BYTES - 1) + b"\n"

    @property
    def ended(self) -> float:
        """The end of the run, in seconds since 1970."""
        return self.began + sum(self.seconds.values())


@dataclasses.dataclass(frozen=True)
class TimeTable:
    """The times of all runs in a directory.

    Attributes:
        seconds: The seconds of each of `ROWS`, which add up to the time from the first
            start to the last end.
        saving: The seconds that threads took for saving, while training continued or
            waited.
        runs: The number of runs.
    """

    seconds: Mapping[str, float]
    saving: float
    runs: int

    @classmethod
    def from_runs(cls, runs: Sequence[RunTimes]) -> Self:
        """Returns the sums over runs in the order of their starts.

        Steps after the checkpoint that a later run resumed from are lost, and the time
        between two runs is the row `down`.
        """
        seconds = dict.fromkeys(ROWS, 0.0)
        resumed = math.inf
        for run in reversed(runs):
            for name, secs in run.seconds.items():
                seconds[name] += secs
            if resumed <= run.steps.points[-1][0]:
                steps = run.seconds[STEPS]
                lost = max(steps - run.steps.until(int(resumed)), 0.0)
                seconds[STEPS] -= lost
                seconds[LOST_STEPS] += lost
            resumed = min(resumed, run.steps.first)
        for before, after in zip(runs, runs[1:], strict=False):
            seconds[DOWN] += max(after.began - before.ended, 0.0)
        return cls(seconds, sum(run.saving for run in runs), len(runs))

    @property
    def total(self) -> float:
        """The seconds from the first start to the last end."""
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float:
        """The share of the time that steps took which were not lost, from 0 to 1."""
        return self.seconds[STEPS] / self.total if self.total else 0.0

    def scalars(self) -> dict[str, float]:
        """Returns all numbers by name, such as "time/steps"."""
        numbers = {f"{PREFIX}{name}": secs for name, secs in self.seconds.items()}
        return numbers | {
            f"{PREFIX}saving_in_background": self.saving,
            f"{PREFIX}goodput": self.goodput,
        }


def read(directory: str) -> list[RunTimes]:
    """Returns the times of all runs in a directory; it skips what it cannot read."""
    try:
        with paths.opened(os.path.join(directory, FILE_NAME)) as file:
            content = file.read(_MOST_BYTES)
    except OSError:
        return []
    return [*_parsed(content)]


def _parsed(content: bytes) -> Iterator[RunTimes]:
    for line in content.splitlines():
        if len(line) < _LINE_BYTES and (times := RunTimes.parse(line)) is not None:
            yield times


class RunTimesFile:
    """The line of one run in the file of a directory, which must not be a link.

    `position` is that of an earlier line of the run, if any. At a URL, others see the
    line after `show`.

    Attributes:
        position: The position of the line.
        is_new: Whether the run has no earlier line, or another run has followed it.
    """

    def __init__(self, directory: str, position: int | None):
        paths.make_directory(directory)
        path = os.path.join(directory, FILE_NAME)
        self._file: GrowingFile = growing(path, resumes=True)
        # Another file may get the descriptor when this one is closed.
        self._using = threading.Lock()
        self._is_open = True
        self._descriptor = shared_files.without_waiting(
            self._file.path,
            os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0),
        )
        try:
            status = os.fstat(self._descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "Not a regular file", path)
            end = status.st_size
            self.is_new = position is None or position + _LINE_BYTES != end
            self.position = end if position is None or self.is_new else position
            if self.is_new and end and self._read(1, end - 1) != b"\n":
                # The system stopped in the middle of the last line.
                self._write(b"\n", end)
                self.position = end + 1
        except BaseException:
            self.close()
            raise

    def earlier(self) -> list[RunTimes]:
        """Returns the times of the runs before this one."""
        return [*_parsed(self._read(min(self.position, _MOST_BYTES), 0))]

    def write(self, times: RunTimes) -> None:
        """Writes the line; it is not flushed to the disk."""
        self._write(times.as_line(), self.position)

    def show(self) -> None:
        """Starts an upload to a URL, which the end of the call waits for."""
        self._file.changed()

    def close(self) -> None:
        """Closes the file; later writes do nothing."""
        with self._using:
            if self._is_open:
                self._is_open = False
                os.close(self._descriptor)

    def _read(self, size: int, position: int) -> bytes:
        content = bytearray(size)
        view = memoryview(content)
        return bytes(content[: shared_files.read_at(self._descriptor, view, position)])

    def _write(self, line: bytes, position: int) -> None:
        with self._using:
            if self._is_open:
                shared_files.write_at(self._descriptor, memoryview(line), position)
