"""What stands for the calls of estimators while a script is rehearsed."""

import contextlib
from collections.abc import Generator
from collections.abc import Iterator
from typing import Any
from typing import Protocol

from keras_tpu_estimator.ground.base.types import InputFn
from keras_tpu_estimator.ground.base.types import PathLike
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.predicted import Predicted

Predictions = Generator[Predicted, None, None]


class Rehearsal(Protocol):
    """Takes the calls of all estimators, none of which computes anything."""

    def train(
        self,
        context: EstimatorContext,
        input_fn: InputFn,
        steps: int | None,
        validation: InputFn | None,
        validation_steps: int | None,
    ) -> None:
        """Takes the place of `TPUEstimator.train`."""

    def evaluate(
        self, context: EstimatorContext, input_fn: InputFn, steps: int | None
    ) -> dict[str, Any]:
        """Takes the place of `TPUEstimator.evaluate`."""

    def predict(
        self, context: EstimatorContext, input_fn: InputFn
    ) -> Predictions:
        """Takes the place of the batches that `TPUEstimator.predict` has."""

    def export(self, base: PathLike) -> str:
        """Takes the place of what exports."""


# One for all threads of a script.
_running: list[Rehearsal] = []


def running() -> Rehearsal | None:
    """The rehearsal that is going on, if there is one."""
    return _running[-1] if _running else None


@contextlib.contextmanager
def rehearsing(rehearsal: Rehearsal) -> Iterator[None]:
    """Has a rehearsal take all calls in a `with` block.

    Example:

    >>> from keras_tpu_estimator.runs import rehearsing
    >>> print(rehearsing.running())
    None
    """
    _running.append(rehearsal)
    try:
        yield
    finally:
        _running.pop()
