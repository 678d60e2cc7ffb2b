"""The metrics of one `train`, counted for each who reports them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_tpu_estimator.engine.device.host_metrics import HostMetrics
from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.runs.outfeed import Outfeed
from keras_tpu_estimator.spec.hooks.session import MetricCounts, NoCounts


class TrainingMetrics:
    """What `train_metrics` are counted in.

    Args:
        metrics: The metrics, or `None` if there are none.
        outfeed: Has `update` called on its thread.
    """

    def __init__(self, metrics: HostMetrics | None, outfeed: Outfeed):
        self._metrics = metrics
        self._outfeed = outfeed
        self._counted: list[HostMetrics] = []

    def update(self, steps: Nest) -> None:
        """Counts some steps, for all.

        Args:
            steps: As `HostMetrics.update` takes them.
        """
        for metrics in self._counted:
            metrics.update(steps)

    def counts(self) -> MetricCounts:
        """New counts, from the next step on."""
        if self._metrics is None:
            return NoCounts()
        counted = self._metrics.another()
        self._counted.append(counted)
        return _Counts(counted, self._outfeed)


class _Counts:
    """Counts that are read by another thread than the one that counts."""

    def __init__(self, metrics: HostMetrics, outfeed: Outfeed):
        self._metrics = metrics
        self._outfeed = outfeed

    def result(self) -> dict[str, Any]:
        """The metrics by name, scalars as floats."""
        self._outfeed.wait()
        return {
            name: float(value) if np.ndim(value) == 0 else value
            for name, value in self._metrics.result().items()
        }

    def counts(self) -> dict[str, Any]:
        """Returns what `resume` needs."""
        self._outfeed.wait()
        return {**self._metrics.counts()}

    def resume(self, counts: Mapping[str, Any]) -> None:
        """Continues from counts, before the first step."""
        self._metrics.resume(counts)

    def reset(self) -> None:
        """Forgets what was counted."""
        self._outfeed.wait()
        self._metrics.reset()
