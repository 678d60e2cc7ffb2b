"""How training counts its steps: one a run, or by a variable of the program.

Nearly all programs add one to the global step in each run, so that all loops
can be planned before the first one. Gradient accumulation or loss scaling may
add nothing in some runs, two optimizers may add two. Their loops are planned
one by one, from the value that the global step has after the loop before.
"""

import dataclasses
import threading
from collections.abc import Iterator

from keras_tpu_estimator.engine.program.steps import Step
from keras_tpu_estimator.runs.plan import LoopPlan
from keras_tpu_estimator.runs.staging import StagedInput
from keras_tpu_estimator.runs.staging import StagedSteps


class StepCounting:
    """Whether runs count by a variable, which the first traced step shows.

    The thread that stages the input waits for it before it ends.
    """

    def __init__(self) -> None:
        self._is_known = threading.Event()
        self._is_by_value = False

    def settle(self, step: Step) -> None:
        """Notes the training step, as soon as it is traced."""
        self._is_by_value = not step.counts_once
        self._is_known.set()

    def give_up(self) -> None:
        """Ends `is_open` on another thread: there is no training step."""
        self._is_known.set()

    def is_open(self) -> bool:
        """Returns whether training may need more runs than it counts steps."""
        self._is_known.wait()
        return self._is_by_value


class RunsByValue:
    """Staged steps, cut into loops by the value of the global step.

    As in the original, a loop on a TPU has as many steps as there are left to
    count, up to `iterations_per_loop`, and each other run is a loop.

    Args:
        first: The first steps.
        infeed: The steps after them, in any number of parts.
        plan: Knows how many steps there are left to count.
        are_single: Whether each run is a loop.
    """

    def __init__(
        self,
        first: StagedSteps,
        infeed: StagedInput,
        plan: LoopPlan,
        are_single: bool,
    ):
        self._infeed = infeed
        self._plan = plan
        self._are_single = are_single
        self._rest: StagedSteps | None = first
        self._left_of_loop = 0

    def __iter__(self) -> Iterator[StagedSteps]:
        return self

    def __next__(self) -> StagedSteps:
        staged = self._rest or next(self._infeed)
        if not self._left_of_loop:
            self._left_of_loop = 1 if self._are_single else self._plan.next_size
        taken, self._rest = staged.split(self._left_of_loop)
        self._left_of_loop -= taken.stacked.steps
        return dataclasses.replace(taken, ends_loop=not self._left_of_loop)

    def take_ready(self) -> StagedSteps | None:
        """Returns nothing: the loop before decides on the next one."""
        return None

    def take_waited_secs(self) -> float:
        """Returns how long the input was waited for since the last call."""
        return self._infeed.take_waited_secs()
