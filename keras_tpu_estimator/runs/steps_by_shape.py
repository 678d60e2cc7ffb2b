"""The steps of one call, one for each shape of its batches."""

from collections.abc import Callable
from typing import Any

from keras_tpu_estimator.engine.program.steps import Step
from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.ground.base.shown import some


class StepsByShape:
    """The steps of one call, prepared once for each shape of its batches.

    Args:
        first: The step for the first batch, whose variables the call has.
        store: The variables of the program.
    """

    def __init__(self, first: Step, store: VariableStore):
        self._first = first
        self._store = store
        self._steps: dict[Any, Step] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def of(self, shapes: Any, prepare: Callable[[], Step]) -> Step:
        """Returns the step for batches of these shapes.

        Args:
            shapes: Equal for batches that one compiled program serves.
            prepare: Prepares the step, if these shapes are new.

        Raises:
            ValueError: The step needs variables that the first one lacks.
        """
        if shapes not in self._steps:
            self._steps[shapes] = self._prepared(prepare)
        return self._steps[shapes]

    def _prepared(self, prepare: Callable[[], Step]) -> Step:
        try:
            step = prepare()
        except Exception as error:  # The user's code, mostly.
            error.add_note(
                "This happened when model_fn was called for batches of another "
                "shape than the first one. Sizes of layers and variables must "
                "not depend on a dimension that changes between batches: pad "
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
                f"{some(weights)}. Make all variables whatever the shapes of "
                "features are, or pad the batches to one shape in input_fn."
            )
        return step
