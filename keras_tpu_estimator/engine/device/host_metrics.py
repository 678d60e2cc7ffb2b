"""The interface of metrics that a `metric_fn` computes on the host."""

from collections.abc import Mapping
from typing import Any, Protocol, Self

import numpy as np

from keras_tpu_estimator.base.common.types import PyTree


class HostMetrics(Protocol):
    """The metrics of a `metric_fn`, accumulated over the steps of a call.

    `directions` has the Keras metrics so far that should rise ("up") or fall ("down"),
    by name.
    """

    directions: dict[str, str]

    def another(self) -> Self:
        """Returns the same metrics with new counts, sharing compiled functions."""

    def reset(self) -> None:
        """Resets the counts."""

    def counts(self) -> dict[str, np.ndarray]:
        """Returns the values of the metrics' variables by path."""

    def resume(self, counts: Mapping[str, np.ndarray]) -> None:
        """Continues from the result of `counts`, even before variables exist."""

    def update(self, steps: PyTree) -> None:
        """Adds steps, which are `StepValues` or arrays of shape `[steps, ...]`."""

    def names(self, steps: PyTree) -> tuple[str, ...]:
        """Returns the metrics' names, found by calling `metric_fn` with zeros."""

    def result(self) -> dict[str, Any]:
        """Returns the metrics' values by name, as NumPy values or bytes."""
