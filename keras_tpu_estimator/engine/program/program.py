"""What a front end makes of a user's `model_fn`."""

from typing import Protocol

from keras_tpu_estimator.engine.program.steps import Step, StepInput
from keras_tpu_estimator.engine.program.store import VariableStore


class Program(Protocol):
    """The variables and the steps that a `model_fn` defines.

    Nothing that uses a program knows how it was made.

    Attributes:
        store: The variables.
    """

    store: VariableStore

    def step(self, mode: str, example: StepInput) -> Step:
        """The step for inputs of this shape, made if it is the first.

        Args:
            mode: A value of `ModeKeys`.
            example: Arrays, or anything with a shape and a dtype. Initial
                values that depend on the input are computed from it.

        Returns:
            A `Step`.
        """
