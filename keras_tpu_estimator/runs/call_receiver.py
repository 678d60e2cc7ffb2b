"""Receivers of the calls of estimators, which run instead of the devices."""

import contextlib
import os
from collections.abc import Generator, Iterator
from typing import Any, Protocol

from keras_tpu_estimator.base.common.types import InputFn
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.prediction_batches import Predicted

Predictions = Generator[Predicted, None, None]


class CallReceiver(Protocol):
    """A receiver of the calls of all estimators, in place of the devices.

    `why_one_process` says why only the process of the receiver may make calls.
    """

    why_one_process: str

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

    def export(self, context: EstimatorContext, export: Any) -> str:
        """Replaces all methods that export."""


# Processes that the script starts inherit this variable.
_RECEIVED = "KERAS_TPU_ESTIMATOR_CALLS_RECEIVED"
# All threads of the script share this list.
_receivers: list[CallReceiver] = []


def is_receiving() -> bool:
    """Returns whether the calls of this process go to a receiver."""
    return bool(_receivers)


def receiver() -> CallReceiver | None:
    """Returns the active receiver, or raises an error if the parent process has one."""
    if _receivers:
        return _receivers[-1]
    if _RECEIVED in os.environ:
        raise RuntimeError(os.environ[_RECEIVED])
    return None


@contextlib.contextmanager
def receiving_calls(receiver: CallReceiver) -> Iterator[None]:
    """Passes all calls in a `with` block to a receiver."""
    _receivers.append(receiver)
    before = os.environ.get(_RECEIVED)
    os.environ[_RECEIVED] = receiver.why_one_process
    try:
        yield
    finally:
        _receivers.pop()
        if before is None:
            del os.environ[_RECEIVED]
        else:
            os.environ[_RECEIVED] = before


@contextlib.contextmanager
def running_calls() -> Iterator[None]:
    """Runs all calls in a `with` block that a receiver makes itself."""
    receivers, reason = _receivers[:], os.environ.pop(_RECEIVED, None)
    _receivers.clear()
    try:
        yield
    finally:
        _receivers[:] = receivers
        if reason is not None:
            os.environ[_RECEIVED] = reason
