"""The records of the calls of one program."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from keras_tpu_estimator.base.common.types import Features, Labels
from keras_tpu_estimator.workflow.comparing.dataflow import Dataflow

# The values to set before a step, by its number from 2; `None` for those of the step
# before.
States: TypeAlias = Callable[[int], Mapping[str, np.ndarray] | None]
# Larger arrays are compared by this many elements, evenly spread.
_MOST_ELEMENTS = 1 << 18


@dataclasses.dataclass(frozen=True)
class VariableFacts:
    """The facts of a variable by which it is paired with one of another program.

    Attributes:
        owner: The path of the variable that it is the optimizer state of, or `None`.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    is_trainable: bool
    is_slot: bool
    owner: str | None = None


@dataclasses.dataclass(frozen=True)
class Batch:
    """The features and labels that one step received from the user's input."""

    features: Features
    labels: Labels


@dataclasses.dataclass(frozen=True)
class StepRecord:
    """One step of training.

    Attributes:
        loss: Its loss.
        gradients: The gradients by the path of the variable, as far as they are known.
        values: The values of the variables after the step, by path.
        start: Those from which the step began, if other programs' values were set for
            it, or `None`.
        state: All elements of the floating-point variables after the step, with which
            another program can begin the next one, or `None` if they were not recorded.
        learning_rates: By name; empty if the program does not report them.
        to_the_host: The tensors that `host_call` and summaries receive, by name.
    """

    loss: float
    gradients: Mapping[str, np.ndarray]
    values: Mapping[str, np.ndarray]
    learning_rates: Mapping[str, float]
    to_the_host: Mapping[str, np.ndarray]
    start: Mapping[str, np.ndarray] | None = None
    state: Mapping[str, np.ndarray] | None = None


@dataclasses.dataclass(frozen=True)
class TrainingRecord:
    """One call of `train`.

    Attributes:
        initial: The values of all variables before the first step, by path.
        variables: The facts of the variables by path.
        dataflow: The forward pass of the first step, or `None` if it is unknown.
        dropout: The rates of the dropouts that the program ran without, each once;
            `None` for rates that are tensors.
        constant_rates: The learning rates that the code sets as numbers, by path.
    """

    batches: Sequence[Batch]
    initial: Mapping[str, np.ndarray]
    variables: Mapping[str, VariableFacts]
    steps: Sequence[StepRecord]
    dataflow: Dataflow | None
    dropout: Sequence[float | None]
    constant_rates: Mapping[str, float]

    def states(
        self, convert: Callable[[Mapping[str, np.ndarray], int], dict[str, np.ndarray]]
    ) -> States:
        """Returns what another program sets before each step but the first.

        Args:
            convert: Receives the state before a step, and the number of the step, and
                returns the other program's values by path.
        """

        def state_before(number: int) -> dict[str, np.ndarray] | None:
            state = self.steps[number - 2].state
            return None if state is None else convert(state, number)

        return state_before


@dataclasses.dataclass(frozen=True)
class EvaluationRecord:
    """One call of `evaluate`: the metrics by name."""

    batches: Sequence[Batch]
    metrics: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class PredictionRecord:
    """One call of `predict`: the predictions of all examples by key."""

    batches: Sequence[Batch]
    predictions: Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class ExportRecord:
    """One export: the dtypes and shapes of its signatures by name."""

    signatures: Mapping[str, str]


def sampled(value: Any) -> np.ndarray:
    """Returns a copy of an array, or of evenly spread elements of a large one."""
    array = np.array(value)
    if array.size <= _MOST_ELEMENTS:
        return array
    return array.reshape(-1)[:: -(-array.size // _MOST_ELEMENTS)].copy()
