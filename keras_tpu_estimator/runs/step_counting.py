"""How training counts its steps: one a run, or by a variable of the program.

Nearly all programs add one to the global step in each run, so that all loops
can be planned before the first one. Gradient accumulation or loss scaling may
add nothing in some runs, two optimizers may add two. Their loops are planned
one by one, from the value that the global step has after the loop before.

As in the original, a loop on a TPU has as many steps as there are left to
count, up to `iterations_per_loop`, and each other run is a loop.
"""

import threading

from keras_tpu_estimator.engine.program.steps import Step


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
