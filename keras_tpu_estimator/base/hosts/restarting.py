"""Restarts of a job whose processes fail, which continues from its last checkpoint."""

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence

from keras_tpu_estimator.base.hosts.forwarding import ForwardedSignals
from keras_tpu_estimator.base.hosts.started_processes import Outcome

# The first and the longest pause. After a start that lasts longer, the
# next pause is the first one again.
_PAUSE_SECS = 1.0
_LONGEST_PAUSE_SECS = 60.0


@dataclasses.dataclass(frozen=True)
class RestartPolicy:
    """The number of restarts, and of the processes of each start.

    Args:
        processes: The number of processes.
        max_restarts: The number of restarts. Defaults to 0.
        min_processes: The number of processes that suffices. Defaults to all.
    """

    processes: int
    max_restarts: int = 0
    min_processes: int | None = None

    def __post_init__(self) -> None:
        if self.min_processes is not None and self.min_processes > self.processes:
            raise ValueError(
                "`min_processes` must be at most the number of processes, "
                f"{self.processes}. Received: {self.min_processes}. Decrease it."
            )

    def slots(self, failed: Sequence[int | None]) -> tuple[int, ...]:
        """Returns the slots of the next start, such as the numbers of GPUs.

        A slot whose process was the first to fail in the last two starts is omitted
        from one start.

        Args:
            failed: The slot that failed first in each earlier start.
        """
        slots = tuple(range(self.processes))
        minimum = self.min_processes or self.processes
        if self.processes == minimum or len(failed) < 2 or failed[-1] != failed[-2]:
            return slots
        return tuple(slot for slot in slots if slot != failed[-1])


def run_with_restarts(
    policy: RestartPolicy,
    start: Callable[[tuple[int, ...], int], Outcome],
    signals: ForwardedSignals,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Starts processes until they succeed, or a restart does not help.

    Args:
        policy: The number of restarts and processes.
        start: Runs processes in some slots, after a number of restarts. The outcome has
            the slot that failed first.
        signals: The signals of this process. One of them prevents a restart.
        clock: Returns the time in seconds.

    Returns:
        0, or the exit code of the first process that failed in the last start.
    """
    failed: list[int | None] = []
    pause = _PAUSE_SECS
    while True:
        slots = policy.slots(failed)
        if len(slots) < policy.processes:
            _report(
                f"This start omits process {failed[-1]}, which was the first to fail "
                "twice in succession."
            )
        began = clock()
        outcome = start(slots, len(failed))
        if not outcome.code or not policy.max_restarts:
            return outcome.code
        if not outcome.is_worth_restart:
            if not outcome.signals:
                _report(
                    f"No restart: exit code {outcome.code} means that it would fail "
                    "again."
                )
            return outcome.code
        if len(failed) == policy.max_restarts:
            _report(f"No restart: the limit of {policy.max_restarts} is reached.")
            return outcome.code
        failed.append(outcome.number)
        if clock() - began > _LONGEST_PAUSE_SECS:
            pause = _PAUSE_SECS
        _report(
            f"Restart {len(failed)} of at most {policy.max_restarts} in {pause:.0f} s."
        )
        if signals.wait(pause):
            return outcome.code
        pause = min(2 * pause, _LONGEST_PAUSE_SECS)


def _report(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
