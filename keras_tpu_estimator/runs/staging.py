"""Steps on their way to the devices: copied ahead of time, and cut into loops."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import numpy as np

from keras_tpu_estimator.api.hooks.hook_list import HookList
from keras_tpu_estimator.base.common.shown import some
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.engine.device.runtime import Runtime
from keras_tpu_estimator.engine.inputs.batch import StackedSteps
from keras_tpu_estimator.engine.inputs.pipeline import Infeed
from keras_tpu_estimator.engine.program.steps import ReadAgainError, Step
from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.runs.agreed_steps import AgreedBatch, AgreedSteps
from keras_tpu_estimator.runs.plan import LoopPlan

# The number of bytes, and of parts, that may wait for the devices. At least two
# parts wait, so that the staging thread need not wake up for each part.
_WAITING_BYTES, _MOST_WAITING = 2**27, 8


@dataclasses.dataclass(frozen=True)
class StagedSteps:
    """Steps on the host, and the same steps on the devices.

    Attributes:
        stacked: The steps on the host, or this host's part of them.
        data: Arrays on the devices with room for the steps of a program.
        steps: The rows of the steps in those arrays.
        ends_loop: Whether the loop ends with these steps.
        is_part: Whether each host has another part of the steps.
        sizes: The number of examples of each host if parts are padded. Defaults
            to none.
    """

    mode: str
    stacked: StackedSteps
    data: PyTree
    steps: range
    ends_loop: bool
    is_part: bool
    sizes: tuple[int, ...] = ()

    @property
    def shapes(self) -> Any:
        """A key that is equal for steps of one compiled program."""
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

    def distributed(self, runtime: Runtime) -> "StagedSteps":
        """Returns the same steps without padding, on the main thread.

        There, all hosts start the programs of their devices in the same order.
        """
        if not self.sizes:
            return self
        data = runtime.loop.distributed(self.mode, self.data, self.sizes)
        return dataclasses.replace(self, data=data, sizes=())

    def prepare(self, runtime: Runtime) -> Step:
        """Returns the program's step for batches of this shape."""
        first = self.stacked.step(0)
        features, labels = first.features, first.labels
        if self.is_part:
            features, labels = jax.tree.map(_one_step_of, self.data, (features, labels))
        return runtime.prepare(self.mode, features, labels)


class StagedInput(Protocol):
    """Staged steps, in the order in which loops take them."""

    def __next__(self) -> StagedSteps:
        """Returns the next steps, or raises `StopIteration` at the end of the input."""

    def __iter__(self) -> Iterator[StagedSteps]:
        """Returns itself."""

    @property
    def is_ready(self) -> bool:
        """Whether `take_ready` returns steps."""

    def take_ready(self) -> StagedSteps | None:
        """Returns the next steps if they are ready and may run ahead."""

    def take_waited_secs(self) -> float:
        """Returns the seconds spent waiting for steps since the last call."""


def _one_step_of(whole: jax.Array, part: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns one step of all hosts in the dtype of this host's part."""
    return np.broadcast_to(np.zeros((), part.dtype), whole.shape[1:])


class Capacities:
    """The number of steps that the programs of one call have room for.

    A program runs any number of steps up to its capacity. Batches of the first shape
    have the usual capacity. A later shape, such as that of a smaller last batch, has a
    capacity of one step until several arrive at once.
    """

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def of(self, batch: AgreedBatch) -> int:
        """Returns the capacity for some steps, which is equal on all hosts."""
        steps, usual = batch.stacked.steps, max(batch.room, batch.stacked.steps)
        signature = batch.stacked.step(0).signature
        shape = signature, batch.is_part, bool(batch.sizes)
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

    A loop has several parts if it is large, or has batches of two sizes. `give_up` is
    called when the input is closed, so that `plan` does not wait.
    """

    capacities = Capacities()

    def stage() -> Iterator[StagedSteps]:
        for left in plan.agreed(steps.agreed_size):
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
                    sizes=taken.sizes,
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
        finish=lambda staged: staged.distributed(runtime),
    )


def _depth(staged: StagedSteps) -> int:
    """Returns the number of parts of this size that may wait."""
    rows = len(jax.tree.leaves(staged.data)[0])
    return _parts_waiting(rows * staged.stacked.step_bytes)


def _parts_waiting(size: int) -> int:
    return min(max(2, _WAITING_BYTES // max(size, 1)), _MOST_WAITING)


def parts_ahead(size: int) -> int:
    """Returns the number of parts of `size` bytes that wait for the running one."""
    # The staging thread has copied one more part, and waits to enqueue it.
    return _parts_waiting(size) + 1


def begin_loops(
    first: StagedSteps | None,
    infeed: StagedInput,
    hooks: HookList,
    runs_ahead: Callable[[], bool] = lambda: False,
) -> Iterator[StagedSteps | None]:
    """Yields the first steps of each loop, and `None` at the end of the input.

    As in TensorFlow, hooks are also called before a loop that the end of the input
    prevents. `run_is_made` of the hooks is called before the next loop begins. If
    `runs_ahead` returns true and the input is ready, the loop begins earlier, and the
    caller must call `run_is_made`.
    """
    staged = first
    while staged is not None:
        yield staged
        staged = infeed.take_ready() if runs_ahead() else None
        if staged is None:
            hooks.run_is_made()  # Waiting for input may take long.
            staged = next(infeed, None)
    yield None


def parts_of_loop(first: StagedSteps, infeed: StagedInput) -> Iterator[StagedSteps]:
    """Yields the parts of one loop, until the loop or the input ends."""
    staged: StagedSteps | None = first
    while staged is not None:
        yield staged
        staged = None if staged.ends_loop else next(infeed, None)


class RecutLoops:
    """Staged steps, cut into loops whose lengths are set when they begin.

    `next_size` returns the length of the next loop, at least one. It is called after
    all earlier loops have run.
    """

    def __init__(
        self,
        first: StagedSteps,
        infeed: StagedInput,
        next_size: Callable[[], int],
    ):
        self._infeed = infeed
        self._next_size = next_size
        self._rest: StagedSteps | None = first
        self._left_of_loop = 0

    def __iter__(self) -> Iterator[StagedSteps]:
        return self

    def __next__(self) -> StagedSteps:
        staged = self._rest or next(self._infeed)
        if not self._left_of_loop:
            self._left_of_loop = self._next_size()
        taken, self._rest = staged.split(self._left_of_loop)
        self._left_of_loop -= taken.stacked.steps
        return dataclasses.replace(taken, ends_loop=not self._left_of_loop)

    def take_one(
        self, coming: StagedSteps | None
    ) -> tuple[StagedSteps, StagedSteps | None]:
        """Takes one step before those of the coming loop, which keeps its length.

        `coming` is the first part of this loop, if it was taken. Returns the step, and
        the new first part. Raises `StopIteration` at the end of the input.
        """
        if coming is None:
            one, self._rest = (self._rest or next(self._infeed)).split(1)
            return one, None
        one, rest = coming.split(1)
        self._left_of_loop += 1
        if rest is None:
            return one, next(self, None)
        return one, dataclasses.replace(rest, ends_loop=False)

    @property
    def is_ready(self) -> bool:
        """`False`, because the next loop depends on the previous one."""
        return False

    def take_ready(self) -> StagedSteps | None:
        """Returns `None`, because the next loop depends on the previous one."""
        return None

    def take_waited_secs(self) -> float:
        """Returns the seconds spent waiting for the input since the last call."""
        return self._infeed.take_waited_secs()


class StepsByShape:
    """The steps of one call, prepared once for each shape of its batches.

    `first` is the step for the first batch, which sets the call's variables.
    """

    def __init__(self, first: Step, store: VariableStore):
        self._first = first
        self._store = store
        self._steps: dict[Any, Step] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def of(self, shapes: Any, prepare: Callable[[], Step]) -> Step:
        """Returns the step for some shapes, with the variables of the first step."""
        if shapes not in self._steps:
            self._steps[shapes] = self._prepared(prepare)
        return self._steps[shapes]

    def _prepared(self, prepare: Callable[[], Step]) -> Step:
        try:
            step = prepare()
        except ReadAgainError as error:
            # Steps that have run cannot run again.
            raise ValueError(str(error)) from error
        except Exception as error:  # Mostly from the user's code.
            error.add_note(
                "This happened when model_fn was called for batches of another "
                "shape than the first one. Sizes of layers and variables must "
                "not depend on a dimension that changes between batches. Pad "
                "it to one length in input_fn, or reduce over it first."
            )
            raise
        new = {*step.reads}.difference(self._first.reads)
        new -= self._store.slots
        weights = sorted(new.intersection(self._store.weights())) if new else []
        if weights:
            raise ValueError(
                "`model_fn` must use the same variables for batches of every "
                f"shape. Received {len(weights)} more for a new shape: "
                f"{some(weights)}. Create all variables for every shape of the "
                "features, or pad the batches to one shape in input_fn."
            )
        return step
