"""Dry runs: replacements for the calls of estimators while a script is planned."""

import contextlib
import os
from collections.abc import Generator, Iterator
from typing import Any, Protocol

from keras_tpu_estimator.base.common.types import InputFn, PathLike
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.prediction_batches import Predicted

Predictions = Generator[Predicted, None, None]


class DryRun(Protocol):
    """A receiver of the calls of all estimators, which computes nothing."""

    def train(
        self,
        context: EstimatorContext,
        input_fn: InputFn,
        steps: int | None,
        validation: InputFn | None,
        validation_steps: int | None,
    ) -> None:
        """Replaces `TPUEstimator.train`."""

    def evaluate(
        self, context: EstimatorContext, input_fn: InputFn, steps: int | None
    ) -> dict[str, Any]:
        """Replaces `TPUEstimator.evaluate`."""

    def predict(self, context: EstimatorContext, input_fn: InputFn) -> Predictions:
        """Replaces the batches of `TPUEstimator.predict`."""

    def export(self, base: PathLike) -> str:
        """Replaces all methods that export."""


# Processes that the script starts inherit this variable.
_PLANNED = "KERAS_TPU_ESTIMATOR_PLANNED"
# All threads of the script share this list.
_running: list[DryRun] = []


def running() -> DryRun | None:
    """Returns the active dry run, or raises an error if the parent process has one."""
    if _running:
        return _running[-1]
    if _PLANNED in os.environ:
        raise RuntimeError(
            "`plan` must not start other processes that use estimators, "
            "because it plans only the calls of one process. Received a "
            "call in a process that the script has started. Plan the script "
            "of that process."
        )
    return None


@contextlib.contextmanager
def replacing_calls(dry_run: DryRun) -> Iterator[None]:
    """Passes all calls in a `with` block to a dry run."""
    _running.append(dry_run)
    before = os.environ.get(_PLANNED)
    os.environ[_PLANNED] = "1"
    try:
        yield
    finally:
        _running.pop()
        if before is None:
            del os.environ[_PLANNED]
