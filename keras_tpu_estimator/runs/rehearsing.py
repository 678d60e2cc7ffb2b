"""What stands for the calls of estimators while a script is rehearsed."""

import contextlib
import os
from collections.abc import Generator, Iterator
from typing import Any, Protocol

from keras_tpu_estimator.ground.base.types import InputFn, PathLike
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

    def predict(self, context: EstimatorContext, input_fn: InputFn) -> Predictions:
        """Takes the place of the batches that `TPUEstimator.predict` has."""

    def export(self, base: PathLike) -> str:
        """Takes the place of what exports."""


# Processes that a script starts inherit it.
_PLANNED = "KERAS_TPU_ESTIMATOR_PLANNED"
# One for all threads of a script.
_running: list[Rehearsal] = []


def running() -> Rehearsal | None:
    """The rehearsal that is going on, if there is one.

    Raises:
        RuntimeError: It is that of the process that has started this one.
    """
    if _running:
        return _running[-1]
    if _PLANNED in os.environ:
        raise RuntimeError(
            "`plan` must not start other processes that use estimators, "
            "because it plans the calls of its own process only. Received a "
            "call in a process that the script has started. Plan the script "
            "of that process."
        )
    return None


@contextlib.contextmanager
def rehearsing(rehearsal: Rehearsal) -> Iterator[None]:
    """Has a rehearsal take all calls in a `with` block.

    Example:

    >>> from keras_tpu_estimator.runs import rehearsing
    >>> print(rehearsing.running())
    None
    """
    _running.append(rehearsal)
    before = os.environ.get(_PLANNED)
    os.environ[_PLANNED] = "1"
    try:
        yield
    finally:
        _running.pop()
        if before is None:
            del os.environ[_PLANNED]
