"""Stacks on their way to the devices: copied ahead of time, and cut into loops."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np

from keras_tpu_estimator.api.hooks.hook_list import HookList
from keras_tpu_estimator.base.common.shown import some
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.engine.device.runtime import Runtime
from keras_tpu_estimator.engine.inputs.pipeline import Infeed
from keras_tpu_estimator.engine.inputs.stacking import Stack
from keras_tpu_estimator.engine.program.steps import ReadAgainError, Step
from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.runs.agreed_steps import AgreedSteps
from keras_tpu_estimator.runs.plan import LoopPlan

T = TypeVar("T")

# The number of bytes, and of stacks, that may wait for the devices. At least two
# stacks wait, so that the staging thread need not wake up for each stack.
_WAITING_BYTES, _MOST_WAITING = 2**27, 8


@dataclasses.dataclass(frozen=True)
class StagedStack:
    """A stack on the host, and the same stack on the devices.

    Attributes:
        stack: The steps on the host, or this host's part of them.
        data: Arrays on the devices with room for the steps of a program.
        rows: The rows of the steps in those arrays.
        ends_loop: Whether the loop ends with these steps.
    """

    mode: str
    stack: Stack
    data: PyTree
    rows: range
    ends_loop: bool

    @property
    def shapes(self) -> Any:
        """A key that is equal for steps of one compiled program."""
        leaves, structure = jax.tree.flatten(self.data)
        return structure, *[(leaf.shape, leaf.dtype) for leaf in leaves]

    def split(self, steps: int) -> tuple["StagedStack", "StagedStack | None"]:
        """Returns at most `steps` steps, and the others if there are any."""
        if len(self.rows) <= steps:
            return self, None
        first, later = self.stack.split(steps)
        return (
            dataclasses.replace(self, stack=first, rows=self.rows[:steps]),
            dataclasses.replace(self, stack=later, rows=self.rows[steps:]),
        )

    def prepare(self, runtime: Runtime) -> Step:
        """Returns the program's step for batches of this shape."""
        first = self.stack.step(0)
        features, labels = first.features, first.labels
        if self.stack.is_part:
            features, labels = jax.tree.map(_one_step_of, self.data, (features, labels))
        return runtime.prepare(self.mode, features, labels)


def _one_step_of(data: jax.Array, part: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns one step of all hosts in the dtype of this host's part."""
    return np.broadcast_to(np.zeros((), part.dtype), data.shape[1:])


class StagedInput(Infeed[StagedStack]):
    """The stacks of coming loops on the devices, where a thread copies them in advance.

    A loop has several stacks if it is large, or has batches of two sizes. A stack has
    room for more steps than it contains, because a program runs any number of steps up
    to its capacity.

    Args:
        plan: The lengths of the loops.
        is_cancelled: As in `Infeed`.
        give_up: Called when the input is closed, so that `plan` does not wait.
    """

    def __init__(
        self,
        runtime: Runtime,
        mode: str,
        steps: AgreedSteps,
        plan: LoopPlan,
        is_cancelled: Callable[[], bool] = lambda: False,
        give_up: Callable[[], None] = lambda: None,
    ):
        self._runtime = runtime
        self._mode = mode
        self._steps = steps
        self._plan = plan
        self._capacities: dict[Any, int] = {}
        self._next_size: Callable[[], int] | None = None
        self._uncut: StagedStack | None = None
        self._left_in_loop = 0
        staged = self._stage()

        def close() -> None:
            give_up()
            steps.give_up()

        super().__init__(
            lambda: next(staged, None),
            _depth,
            is_cancelled=is_cancelled,
            give_up=close,
            finish=self._distributed,
        )

    def cut_loops(
        self, first: StagedStack, next_size: Callable[[], int]
    ) -> StagedStack:
        """Cuts this stack and all later ones into other loops.

        Args:
            next_size: Returns the length of the next loop, at least one, after all
                earlier loops have run.

        Returns:
            The first stack of the first loop.
        """
        self._next_size, self._uncut = next_size, first
        return next(self)

    @property
    def is_cut(self) -> bool:
        """Whether each loop gets its length when all earlier ones have run."""
        return self._next_size is not None

    def take_one(
        self, coming: StagedStack | None
    ) -> tuple[StagedStack, StagedStack | None]:
        """Takes one step before those of the coming loop, which keeps its length.

        `coming` is the first stack of this loop, if it was taken. Returns the step, and
        the new first stack. Raises `StopIteration` at the end of the input.
        """
        if coming is None:
            one, self._uncut = (self._uncut or super().__next__()).split(1)
            return one, None
        one, later = coming.split(1)
        self._left_in_loop += 1
        if later is None:
            return one, next(self, None)
        return one, dataclasses.replace(later, ends_loop=False)

    def __next__(self) -> StagedStack:
        if self._next_size is None:
            return super().__next__()
        staged = self._uncut or super().__next__()
        if not self._left_in_loop:
            self._left_in_loop = self._next_size()
        staged, self._uncut = staged.split(self._left_in_loop)
        self._left_in_loop -= len(staged.rows)
        return dataclasses.replace(staged, ends_loop=not self._left_in_loop)

    def _stage(self) -> Iterator[StagedStack]:
        """Copies the stacks of all loops to the devices."""
        loop = self._runtime.loop
        for steps_left in self._plan.agreed(self._steps.agreed_size):
            while steps_left:
                stack = self._steps.take(steps_left)
                if stack is None:
                    return
                steps_left -= stack.steps
                features, labels = stack.padded_to(self._capacity(stack))
                yield StagedStack(
                    self._mode,
                    stack,
                    loop.put(self._mode, features, labels, stack.is_part),
                    range(stack.steps),
                    ends_loop=not steps_left,
                )

    def _capacity(self, stack: Stack) -> int:
        """Returns the number of steps that a program has room for.

        It is equal on all hosts. Batches of the first shape have the usual capacity. A
        later shape, such as that of a smaller last batch, has a capacity of one step
        until several arrive at once.
        """
        usual = max(self._steps.capacity(stack), stack.steps)
        key = stack.step(0).signature, stack.is_part, bool(stack.part_sizes)
        capacity = self._capacities.get(key, 1 if self._capacities else usual)
        self._capacities[key] = capacity if stack.steps <= capacity else usual
        return self._capacities[key]

    def _distributed(self, staged: StagedStack) -> StagedStack:
        """Returns the same steps without padding, on the main thread.

        There, all hosts start the programs of their devices in the same order.
        """
        sizes = staged.stack.part_sizes
        if not sizes:
            return staged
        data = self._runtime.loop.distributed(self._mode, staged.data, sizes)
        return dataclasses.replace(staged, data=data)


def _depth(staged: StagedStack) -> int:
    """Returns the number of stacks of this size that may wait."""
    rows = len(jax.tree.leaves(staged.data)[0])
    return _stacks_waiting(rows * staged.stack.step_bytes)


def _stacks_waiting(size: int) -> int:
    return min(max(2, _WAITING_BYTES // max(size, 1)), _MOST_WAITING)


def next_loop(infeed: Infeed[T], hooks: HookList, runs_ahead: bool = False) -> T | None:
    """Returns the first stack of the next loop, or `None` at the end of the input.

    Hooks first see the completed previous loop. If the next loop `runs_ahead` and its
    stack is ready, they do not, and the caller must call `run_completed`.
    """
    staged = infeed.take_ready() if runs_ahead else None
    if staged is None:
        hooks.run_completed()  # Waiting for input may take long.
        staged = next(infeed, None)
    return staged


def stacks_ahead(size: int) -> int:
    """Returns the number of stacks of `size` bytes that wait for the running one."""
    # The staging thread has copied one more stack, and waits to enqueue it.
    return _stacks_waiting(size) + 1


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

    def prepared(self, shapes: Any, prepare: Callable[[], Step]) -> Step:
        """Returns the step for some shapes, with the variables of the first step."""
        if shapes not in self._steps:
            self._steps[shapes] = self._prepare(prepare)
        return self._steps[shapes]

    def _prepare(self, prepare: Callable[[], Step]) -> Step:
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
