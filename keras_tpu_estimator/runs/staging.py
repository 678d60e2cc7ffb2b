"""Copying stacked steps to the devices before they are wanted."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import numpy as np

from keras_tpu_estimator.engine.device.runtime import Runtime
from keras_tpu_estimator.engine.inputs.batch import StackedSteps
from keras_tpu_estimator.engine.inputs.infeed import Infeed
from keras_tpu_estimator.engine.program.steps import Step
from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.runs.agreed_steps import AgreedBatch, AgreedSteps
from keras_tpu_estimator.runs.plan import LoopPlan
from keras_tpu_estimator.spec.hooks.hook_list import HookList

# So many bytes may wait for the devices, and two parts at least: a thread that
# has filled the devices' queue need not be woken for each part then.
_WAITING_BYTES, _MOST_WAITING = 2**27, 8


@dataclasses.dataclass(frozen=True)
class StagedSteps:
    """Steps on the host, and the same steps on the devices.

    Attributes:
        stacked: The steps on the host, or this host's part of them.
        data: The steps on the devices, among those of as many as a program
            has room for.
        steps: Their places there.
        ends_loop: Whether the loop that they belong to ends with them.
        is_part: Whether other hosts have other parts of them.
    """

    mode: str
    stacked: StackedSteps
    data: Nest
    steps: range
    ends_loop: bool
    is_part: bool

    @property
    def shapes(self) -> Any:
        """Equal for steps that one program serves."""
        leaves, structure = jax.tree.flatten(self.data)
        return structure, *((leaf.shape, leaf.dtype) for leaf in leaves)

    def split(self, steps: int) -> tuple["StagedSteps", "StagedSteps | None"]:
        """Returns at most `steps` steps, and the others if there are any."""
        if self.stacked.steps <= steps:
            return self, None
        first, rest = self.stacked.split(steps)
        return (
            dataclasses.replace(self, stacked=first, steps=self.steps[:steps]),
            dataclasses.replace(self, stacked=rest, steps=self.steps[steps:]),
        )

    def prepare(self, runtime: Runtime) -> Step:
        """The program's step for batches of this shape."""
        first = self.stacked.step(0)
        features, labels = first.features, first.labels
        if self.is_part:
            features, labels = jax.tree.map(_one_step_of, self.data, (features, labels))
        return runtime.prepare(self.mode, features, labels)


class StagedInput(Protocol):
    """Staged steps, in the order in which loops take them."""

    def __next__(self) -> StagedSteps:
        """Returns the next steps.

        Raises:
            StopIteration: The input has ended.
        """

    def __iter__(self) -> Iterator[StagedSteps]:
        """Returns itself."""

    @property
    def is_ready(self) -> bool:
        """Whether `take_ready` returns steps."""

    def take_ready(self) -> StagedSteps | None:
        """Returns the next steps if they are ready and may run ahead."""

    def take_waited_secs(self) -> float:
        """Returns how long steps were waited for since the last call."""


def _one_step_of(whole: jax.Array, part: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """One step of all hosts, as wide as on this one: devices may have less."""
    return np.broadcast_to(np.zeros((), part.dtype), whole.shape[1:])


class Capacities:
    """The number of steps that the programs of one call have room for.

    A program makes any number of steps up to its capacity. Batches of the first
    shape have the usual one. A later shape, such as that of a smaller last
    batch, has room for one step until several come at once.
    """

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def of(self, batch: AgreedBatch) -> int:
        """Returns the capacity for some steps, the same on all hosts."""
        steps, usual = batch.stacked.steps, max(batch.room, batch.stacked.steps)
        shape = batch.stacked.step(0).signature, batch.is_part
        known = self._known.get(shape, 1 if self._known else usual)
        self._known[shape] = known if steps <= known else usual
        return self._known[shape]


def stage_ahead(
    runtime: Runtime,
    mode: str,
    steps: AgreedSteps,
    plan: LoopPlan,
    is_cancelled: Callable[[], bool] = lambda: False,
    give_up: Callable[[], None] = lambda: None,
) -> Infeed[StagedSteps]:
    """Copies the steps of coming loops to the devices, ahead of time.

    A loop is fed in several parts if it is large, or has batches of two sizes.

    Args:
        plan: How many steps each loop makes.
        is_cancelled: As in `Infeed`. Defaults to never.
        give_up: Called when the input is closed, so that `plan` does not wait.
            Defaults to nothing.
    """

    capacities = Capacities()

    def stage() -> Iterator[StagedSteps]:
        for left in plan.agreed(steps.chiefs_size):
            while left:
                taken = steps.take(left)
                if taken is None:
                    return
                stacked, is_part = taken.stacked, taken.is_part
                left -= stacked.steps
                features, labels = stacked.padded_to(capacities.of(taken))
                data = runtime.loop.put(mode, features, labels, is_part)
                yield StagedSteps(
                    *(mode, stacked, data, range(stacked.steps)),
                    ends_loop=not left,
                    is_part=is_part,
                )

    def close() -> None:
        give_up()
        steps.give_up()

    staged = stage()
    return Infeed(
        lambda: next(staged, None),
        _depth,
        is_cancelled=is_cancelled,
        give_up=close,
    )


def _depth(staged: StagedSteps) -> int:
    """How many parts may wait that are as large."""
    rows = len(jax.tree.leaves(staged.data)[0])
    return _parts_waiting(rows * staged.stacked.step_bytes)


def _parts_waiting(size: int) -> int:
    return min(max(2, _WAITING_BYTES // max(size, 1)), _MOST_WAITING)


def parts_ahead(size: int) -> int:
    """Returns how many parts are on the devices beside the running one.

    Args:
        size: The bytes of each.
    """
    # One more than may wait: the thread has copied it and waits for room.
    return _parts_waiting(size) + 1


def begin_loops(
    first: StagedSteps,
    infeed: StagedInput,
    hooks: HookList,
    runs_ahead: Callable[[], bool] = lambda: False,
) -> Iterator[StagedSteps | None]:
    """Yields what each loop begins with, and `None` at the end of the input.

    As in the original, hooks hear of a loop that the end prevents.

    Args:
        first: The first steps.
        infeed: The others, without those that loops have taken.
        hooks: Told that a loop is made before the next one begins.
        runs_ahead: Whether the next one, if its input is ready, may begin
            before that; its caller must tell them then. Defaults to never.
    """
    staged: StagedSteps | None = first
    while staged is not None:
        yield staged
        staged = infeed.take_ready() if runs_ahead() else None
        if staged is None:
            hooks.run_is_made()  # Before input that may be long in coming.
            staged = next(infeed, None)
    yield None


def parts_of_loop(first: StagedSteps, infeed: StagedInput) -> Iterator[StagedSteps]:
    """The parts that one loop is fed in, as far as the input has them."""
    staged: StagedSteps | None = first
    while staged is not None:
        yield staged
        staged = None if staged.ends_loop else next(infeed, None)
