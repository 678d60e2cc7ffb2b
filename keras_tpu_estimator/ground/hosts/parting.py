"""The ends of all hosts' programs, of which no host is to miss any."""

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any
from typing import Self

import jax

from keras_tpu_estimator.ground.hosts.problem import Problem
from keras_tpu_estimator.ground.hosts.store import Store

# How long a process may take to end by itself once another has failed.
GRACE_SECS = 3.0
# How long one that ends badly waits until the others have heard of it.
PARTING_SECS = GRACE_SECS + 2.0
# And host 0, until they are gone.
_LEAVING_SECS = 1.0
_LOOK_SECS = 0.1
_LOOK_MSECS = 200
_ENDED = "ended"
_LEFT = "left"
_ALL = "all"


@dataclasses.dataclass(frozen=True)
class End:
    """How the program of a host ends.

    Attributes:
        code: Its exit code, as far as that is known.
        problem: What has ended it, if it has not come to its own end.
    """

    code: int | None
    problem: Problem | None = None

    @classmethod
    def told(cls, code: int | None, *problem: Any) -> Self:
        """What `tell` has told."""
        return cls(code, Problem(*problem) if problem else None)

    def tell(self) -> list[object]:
        """This in what JSON can write."""
        if self.problem is None:
            return [self.code]
        return [self.code, *dataclasses.astuple(self.problem)]


class Parting:
    """How hosts come to their end, together or one after the other.

    Args:
        index: The number of this one.

    Attributes:
        has_begun: Whether this one has told of its end.
    """

    def __init__(self, index: int, count: int, store: Store):
        self._index = index
        self._count = count
        self._store = store
        self.has_begun = False

    def ends(self) -> dict[int, End]:
        """Returns the ends of the hosts whose programs have ended."""
        told = self._store.published_by_process(_ENDED)
        return {host: End.told(*end) for host, end in told.items()}

    def problem(self) -> Problem | None:
        """What has ended another host before its time."""
        ends = self.ends()
        ends.pop(self._index, None)
        problems = [ends[host].problem for host in sorted(ends)]
        told = [each for each in problems if each is not None]
        # What has happened here is known; the others may say more.
        told.sort(key=lambda each: each.host == self._index)
        return told[0] if told else None

    def leave_together(
        self, code: int | None, told: Callable[[], Problem | None]
    ) -> Problem | None:
        """Waits until all are at their end: some may still predict.

        The end of host 0 would be that of all.

        Args:
            code: The exit code of this one, as far as it is known.
            told: Why this one has to end by what others have told.

        Returns:
            What keeps them from it; `None` when all are there.
        """
        self._tell(End(code))
        if self._store.increment(f"{_ALL}/count") == self._count:
            self._store.write(f"{_ALL}/ended", b"")
        while (problem := told()) is None:
            if self._store.read(f"{_ALL}/ended", _LOOK_MSECS) is not None:
                # They may have told of it before.
                return told()
        return problem

    def part(self, problem: Problem) -> None:
        """Tells why this host ends, and waits until all have heard of it.

        With host 0 goes what others have not read yet, and JAX ends them; and
        where one has ended, its launcher may end the others.
        """
        until = time.monotonic() + PARTING_SECS
        waited_for = {*range(self._count)}
        # Who is gone, or stuck, does not hear it.
        if not problem.hears and problem.host is not None:
            waited_for.discard(problem.host)
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            if not self.has_begun:
                self._tell(End(problem.code, problem))
            self._store.publish(_LEFT, self._index)
            while (
                not waited_for <= self._store.published_by_process(_LEFT).keys()
            ):
                if time.monotonic() > until:
                    return
                time.sleep(_LOOK_SECS)
            if self._index == 0:
                time.sleep(_LEAVING_SECS)

    def _tell(self, end: End) -> None:
        self.has_begun = True
        self._store.publish(_ENDED, self._index, end.tell())
