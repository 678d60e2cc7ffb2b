"""Accounts of time: which part of a run each second of a thread belongs to.

A thread is in one account at any time. The block `with STEPS:` charges its seconds to
the account `steps`, and the account around it continues when the block ends. The
accounts therefore add up to the time of the run.
"""

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Self

# The accounts, in the order of the table.
START, RESTORE, COMPILE, INPUT, STEPS = "start", "restore", "compile", "input", "steps"
LOST_STEPS, EVALUATION, SAVING = "lost_steps", "evaluation", "saving"
HOOKS, OTHER, BETWEEN_CALLS = "hooks", "other", "between_calls"
ACCOUNTS = (
    *(STEPS, START, RESTORE, COMPILE, INPUT, EVALUATION, SAVING, HOOKS, OTHER),
    *(BETWEEN_CALLS, LOST_STEPS),
)


@dataclasses.dataclass(frozen=True)
class StepSeconds:
    """The seconds that all steps of a run took up to some of its global steps.

    `points` are pairs of a step and the seconds up to it, in ascending order. Times
    between two points are interpolated. Few points stay, so that they fit in a line.
    """

    points: tuple[tuple[int, float], ...]

    _MOST = 24

    def __post_init__(self) -> None:
        columns = [*zip(*self.points, strict=True)]
        if len(columns) != 2 or any(list(c) != sorted(c) for c in columns):
            raise ValueError(
                "`points` must be pairs of a step and its seconds, in ascending order. "
                f"Received: {self.points!r}. Sort them."
            )

    @property
    def first(self) -> int:
        """The step that the run started from."""
        return self.points[0][0]

    def to(self, step: int, seconds: float) -> Self:
        """Returns the points with a new last one."""
        start, *points = self.points
        # Time that was compiling may have left the account meanwhile.
        later = [(s, min(secs, seconds)) for s, secs in points if s < step]
        if len(later) >= self._MOST:
            # The newer points stay exact, and the older ones about equally far apart.
            older = range(1, len(later) - 8)
            del later[min(older, key=lambda i: later[i + 1][0] - later[i - 1][0])]
        return type(self)((start, *later, (step, seconds)))

    def until(self, step: int) -> float:
        """Returns the seconds of the steps up to a global step."""
        earlier, before = self.points[0]
        if step <= earlier:
            return before
        for later, after in self.points[1:]:
            if step <= later:
                share = (step - earlier) / max(later - earlier, 1)
                return before + share * (after - before)
            earlier, before = later, after
        return before


class TimeLedger:
    """The accounts of one run, which are charged by one thread at a time.

    `step` is the global step of the newest started steps, `saves` the number of started
    checkpoints, and `background` the seconds that other threads took for them.
    """

    def __init__(
        self, before: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begins with `before` seconds of the start."""
        self._clock = clock
        self._since = clock()
        self._began = self._since - before
        self._account = BETWEEN_CALLS
        # The outer accounts, and the times when their inner blocks began.
        self._outer: list[tuple[str, float]] = []
        self._seconds = dict.fromkeys(ACCOUNTS, 0.0) | {START: before}
        # The ended blocks and compilations inside the current blocks: when they began,
        # and their lengths.
        self._inner: list[tuple[float, float]] = []
        # The account that continues after a compilation in progress.
        self._compiling_in: str | None = None
        self._steps: StepSeconds | None = None
        self.step = self.saves = 0
        self.background = 0.0

    def enter(self, account: str) -> None:
        """Charges the time from now on to an account."""
        outer = self._account
        self._switch(account)
        self._outer.append((outer, self._since))

    def leave(self) -> None:
        """Charges the time from now on to the account before the last `enter`."""
        # A signal may have interrupted an earlier block before it began.
        account, began = self._outer.pop() if self._outer else (BETWEEN_CALLS, 0.0)
        self._switch(account)
        if len(self._outer) <= 1:
            self._inner.clear()
        else:
            self._end_inner(self._since - began)

    def leave_all(self) -> None:
        """Ends all blocks, of which a signal may have interrupted some."""
        self._outer.clear()
        self.leave()

    def restart(self) -> None:
        """Begins again without any seconds, in the same account."""
        self._seconds = dict.fromkeys(ACCOUNTS, 0.0)
        self._began = self._since = self._clock()
        self._inner, self._steps = [], None
        self.background = 0.0

    def note_compiling(self, seconds: float, compiles_next: bool) -> None:
        """Moves the last seconds to the account of compiling.

        Inner blocks and compilations are not moved again. If the compiler
        runs next, the account changes now, because the process may end meanwhile.
        """
        account, began = self._compiling_in, self._since
        is_charged = account is not None
        account = account or self._account
        self._switch(account)
        if is_charged:
            self._inner.append((began, self._since - began))
        self._move(account, COMPILE, seconds - self._end_inner(seconds))
        if compiles_next:
            self._account, self._compiling_in = COMPILE, account

    def resume(self, step: int) -> None:
        """Notes that training continues at a step; time of later steps is lost."""
        if self._steps is not None:
            lost = self._seconds[STEPS] - self.steps.until(step)
            self._move(STEPS, LOST_STEPS, lost)
        if self._steps is None or step < self._steps.first:
            self._steps = StepSeconds(((step, 0.0),))
        else:
            self._steps = self._steps.to(step, self._seconds[STEPS])
        self.step = step

    def note_save(self) -> None:
        """Notes the seconds of the steps up to a checkpoint of the newest step."""
        self._steps = self.steps
        self.saves += 1

    @property
    def steps(self) -> StepSeconds:
        """The seconds of the steps so far."""
        return self.steps_after(self._seconds[STEPS])

    def steps_after(self, seconds: float) -> StepSeconds:
        """Returns `steps` with the seconds up to the newest one."""
        before = self._steps or StepSeconds(((self.step, 0.0),))
        return before.to(max(self.step, before.first), seconds)

    def seconds(self) -> dict[str, float]:
        """Returns the seconds by account; any thread may call this."""
        for _ in range(100):
            account, since = self._account, self._since
            seconds, now = dict(self._seconds), self._clock()
            seconds[account] += now - since
            # Otherwise the ledger's thread has changed the account meanwhile.
            if abs(sum(seconds.values()) - (now - self._began)) < 1e-3:
                break
        return seconds

    def _switch(self, account: str) -> None:
        """Charges the time from now on to an account."""
        now = self._clock()
        self._seconds[self._account] += now - self._since
        self._account, self._since = account, now
        self._compiling_in = None

    def _end_inner(self, seconds: float) -> float:
        """Replaces the inner intervals of the last seconds, and returns their sum."""
        begin, inner = self._since - seconds, 0.0
        # JAX measures before it reports, so that beginnings are not exact.
        while self._inner and sum(self._inner[-1]) > begin + self._inner[-1][1] / 2:
            inner += self._inner.pop()[1]
        self._inner.append((begin, seconds))
        return inner

    def _move(self, source: str, target: str, seconds: float) -> None:
        seconds = min(max(seconds, 0.0), self._seconds[source])
        if source != target:
            self._seconds[source] -= seconds
            self._seconds[target] += seconds


class _Thread(threading.local):
    """The ledger that the current thread charges, or `None`."""

    ledger: TimeLedger | None = None


_thread = _Thread()


class Account(contextlib.ContextDecorator):
    """A block, or function, whose seconds an account of the thread's ledger receives.

    It must not contain a `yield`, because a generator may stay open. Without a ledger,
    it does nothing.
    """

    def __init__(self, name: str):
        self._name = name

    def __enter__(self) -> None:
        ledger = _thread.ledger
        if ledger is not None:
            ledger.enter(self._name)

    def __exit__(self, *exception: object) -> None:
        ledger = _thread.ledger
        if ledger is not None:
            ledger.leave()


restoring, compiling, waiting_for_input = map(Account, (RESTORE, COMPILE, INPUT))
stepping, saving, calling_hooks = map(Account, (STEPS, SAVING, HOOKS))


class Charging:
    """A block in which the current thread charges a ledger, or none; not reusable."""

    def __init__(self, ledger: TimeLedger | None):
        self._ledger = ledger

    def __enter__(self) -> None:
        self._before, _thread.ledger = _thread.ledger, self._ledger

    def __exit__(self, *exception: object) -> None:
        _thread.ledger = self._before


def current() -> TimeLedger | None:
    """Returns the ledger that the current thread charges."""
    return _thread.ledger


def note_compiling(seconds: float, compiles_next: bool) -> None:
    """Moves the current thread's last seconds to the account of compiling."""
    if _thread.ledger is not None:
        _thread.ledger.note_compiling(seconds, compiles_next)


def note_step(step: int) -> None:
    """Notes the global step of the newest started steps."""
    if _thread.ledger is not None:
        _thread.ledger.step = step


def note_save() -> None:
    """Notes the seconds of the steps up to a checkpoint of the newest step."""
    if _thread.ledger is not None:
        _thread.ledger.note_save()


def in_background(write: Callable[[], Any]) -> Callable[[], None]:
    """Returns a function for another thread; the ledger counts its seconds."""
    ledger = _thread.ledger

    def counted() -> None:
        since = time.monotonic()
        try:
            write()
        finally:
            if ledger is not None:
                ledger.background += time.monotonic() - since

    return counted


_IMPORTED = time.monotonic()


def process_age() -> float:
    """Returns the seconds since the start of this process.

    On systems without this number, the function returns the time since this import.
    """
    since_import = time.monotonic() - _IMPORTED
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            # The name of the program, in parentheses, may contain spaces.
            fields = file.read().rpartition(")")[2].split()
        ticks = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks
    except (OSError, ValueError, IndexError, AttributeError):
        return since_import
    return max(age, since_import)


def forget() -> None:
    """Stops charging in a forked process."""
    _thread.ledger = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget)
