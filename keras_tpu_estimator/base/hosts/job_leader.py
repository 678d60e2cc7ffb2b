"""The leader of the supervisors of a job: it decides when all start and stop.

Only the supervisor of process 0 is a leader, so that two parts of a divided network
never train at the same time: a part without the leader waits.
"""

import collections
import dataclasses
import signal
import sys
import time
from collections.abc import Sequence

from keras_tpu_estimator.base.common.system import RETRY_CODE, free_port
from keras_tpu_estimator.base.hosts.forwarding import ForwardedSignals
from keras_tpu_estimator.base.hosts.joined_supervisors import JoinedSupervisors
from keras_tpu_estimator.base.hosts.restarting import RestartPolicy, run_with_restarts
from keras_tpu_estimator.base.hosts.started_processes import (
    MOMENT_SECS,
    Action,
    Outcome,
)
from keras_tpu_estimator.base.hosts.supervisor_connection import (
    Connection,
    Ended,
    Start,
    Stop,
)

# "Service unavailable", as the field's `sysexits.h` has it: too few supervisors.
_TOO_FEW_CODE = 69
# The time in which lost hosts may return to a restart that does not need them.
_RETURN_SECS = 30.0
# The time between two looks at the signals of this process.
_SIGNAL_SECS = 0.5
_IDLE_SECS = 3600.0


class JobLeader:
    """Starts the processes of a job on all hosts, and stops all if one fails.

    Args:
        supervisors: All supervisors, with that of this process.
        host: The host of process 0, as others address it.
        policy: The number of restarts and processes.
        wait_secs: Seconds in which the supervisors must join.
        end_secs: Seconds after which a process that must end counts as lost.
        signals: The signals of this process.
    """

    def __init__(
        self,
        supervisors: JoinedSupervisors,
        host: str,
        policy: RestartPolicy,
        *,
        wait_secs: float,
        end_secs: float,
        signals: ForwardedSignals,
    ) -> None:
        self._supervisors = supervisors
        self._host = host
        self._policy = policy
        self._wait_secs = wait_secs
        self._end_secs = end_secs
        self._signals = signals
        # This may be the second leader of the job.
        self._earlier_starts = 0

    def run(self) -> None:
        """Runs the job, and tells all supervisors its exit code.

        If this host is preempted, the others wait for the next leader.
        """
        self._supervisors.start()
        try:
            code = run_with_restarts(self._policy, self._run_once, self._signals)
            received = self._signals.received
            is_preempted = received and signal.SIGINT not in received
            if not (is_preempted and Outcome(code).is_worth_restart):
                self._supervisors.end(code)
        finally:
            self._supervisors.close()

    def _run_once(self, slots: Sequence[int], restarts: int) -> Outcome:
        """Runs all processes until they have ended; returns the first failure."""
        is_complete = self._gather(is_first=not restarts)
        if self._signals.received:
            return Outcome(RETRY_CODE, signals=(*self._signals.received,))
        if not is_complete:
            return Outcome(_TOO_FEW_CODE)
        # This host has process 0 of each start, so that the address remains valid.
        numbers = sorted(self._supervisors.numbers & {0, *slots})
        if len(numbers) < self._policy.processes:
            _report(f"Start with {len(numbers)} of {self._policy.processes} processes.")
        if not restarts:
            self._earlier_starts = self._supervisors.starts
        restarts += self._earlier_starts
        address = f"{self._host}:{free_port()}"
        attempt = _Attempt(self._supervisors, numbers, restarts, self._end_secs)
        outcome = attempt.run(address)
        signals = (*outcome.signals, *self._signals.received)
        return dataclasses.replace(outcome, signals=signals)

    def _gather(self, is_first: bool) -> bool:
        """Waits for the supervisors; returns whether there are enough.

        The first start waits for all. A restart waits for those that it can omit only
        as long as a failed host may need to return.
        """
        processes = self._policy.processes
        minimum = self._policy.min_processes or processes
        began = time.monotonic()
        while not self._signals.received:
            count = len(self._supervisors.numbers)
            suffices = count >= minimum and not is_first
            secs = min(_RETURN_SECS, self._wait_secs) if suffices else self._wait_secs
            now = time.monotonic()
            if count == processes or now > began + secs:
                break
            self._supervisors.next_event(now + _SIGNAL_SECS)
        count = len(self._supervisors.numbers)
        if count < minimum and not self._signals.received:
            _report(
                f"Only {count} of {processes} supervisors have joined in "
                f"{self._wait_secs:.0f} s. Check that all were started, and can "
                f"connect to {self._host}."
            )
        return count >= minimum


class _Attempt:
    """One start of the processes of a job.

    Args:
        supervisors: All supervisors.
        numbers: The processes to start.
        restarts: The number of restarts of the job.
        end_secs: See `JobLeader`.
    """

    def __init__(
        self,
        supervisors: JoinedSupervisors,
        numbers: Sequence[int],
        restarts: int,
        end_secs: float,
    ) -> None:
        self._supervisors = supervisors
        self._restarts = restarts
        self._end_secs = end_secs
        self._running: dict[Connection, int] = {
            supervisors.connection(number): number for number in numbers
        }

    def run(self, address: str) -> Outcome:
        """Starts the processes, and waits until all have ended."""
        count = len(self._running)
        for index, connection in enumerate(self._running):
            connection.send(Start(address, count, index, self._restarts))
        failed = Outcome()
        signals: set[int] = set()
        # The actions after a failure, by time.
        actions: collections.deque[Action] = collections.deque()
        while self._running:
            deadline = actions[0].at if actions else time.monotonic() + _IDLE_SECS
            event = self._supervisors.next_event(deadline)
            if event is None:
                if actions:
                    actions.popleft().run()
                continue
            end = self._end_from(*event)
            if end is None:
                continue
            signals.update(end.signals)
            if end.code and not failed.code:
                failed = end
                now = time.monotonic() + MOMENT_SECS
                actions.append(Action(now, self._stop))
                actions.append(Action(now + self._end_secs, self._give_up))
        return dataclasses.replace(failed, signals=(*signals,))

    def _end_from(self, connection: Connection, message: object) -> Outcome | None:
        """Returns how a process has ended; `None` for other messages."""
        if connection not in self._running:
            return None
        if message is None:
            number = self._running.pop(connection)
            _report(f"The supervisor of process {number} is lost.")
            return Outcome(RETRY_CODE, number)
        if isinstance(message, Ended) and message.restarts == self._restarts:
            number = self._running.pop(connection)
            # A user's signal ends the job; others may preempt one host.
            is_interrupted = signal.SIGINT in message.signals
            signals = (int(signal.SIGINT),) if is_interrupted else ()
            return Outcome(message.code, number, signals)
        return None

    def _stop(self) -> None:
        for connection in self._running:
            connection.send(Stop(self._restarts))

    def _give_up(self) -> None:
        """Treats supervisors whose processes do not end as lost."""
        for connection in self._running:
            connection.close()


def _report(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
