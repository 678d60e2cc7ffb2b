"""The numbers that training reports while it goes on."""

import time

import numpy as np

from keras_tpu_estimator.engine.device.host_metrics import HostMetrics
from keras_tpu_estimator.engine.inputs.infeed import Infeed
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.loop_state import LoopState
from keras_tpu_estimator.runs.outfeed import Outfeed
from keras_tpu_estimator.runs.staging import StagedSteps
from keras_tpu_estimator.spec.hooks.training_log import TrainingLogHook
from keras_tpu_estimator.spec.model_fn.spec_checks import OwnNames

# What the log, `metrics.jsonl` and the event file have beside the metrics.
REPORT_NAMES = OwnNames(
    "a report of training has",
    (
        "loss",
        "step",
        "global_step",
        "time",
        "learning_rate",
        "learning_rate/*",
        "input_wait",
        "global_step/sec",
        "examples/sec",
    ),
)


class TrainingReport:
    """What one `train` has to report from time to time.

    Args:
        progress: Where the loop is.
        infeed: Knows how long it was waited for.
        outfeed: Counts the metrics.
        metrics: What `train_metrics` are counted in, if there are any.
    """

    def __init__(
        self,
        progress: LoopState,
        infeed: Infeed[StagedSteps],
        outfeed: Outfeed,
        metrics: HostMetrics | None,
    ):
        self._loop_state = progress
        self._infeed = infeed
        self._outfeed = outfeed
        self._metrics = metrics
        self._reported_at = time.monotonic()

    def numbers(self) -> dict[str, float]:
        """Numbers of the time since they were asked for last, by name."""
        now = time.monotonic()
        numbers = {
            name: float(np.asarray(value))
            for name, value in self._loop_state.reports.items()
        }
        elapsed = max(now - self._reported_at, 1e-9)
        numbers["input_wait"] = self._infeed.take_waited_secs() / elapsed
        self._reported_at = now
        if self._metrics is not None:
            self._outfeed.wait()
            for name, value in self._metrics.result().items():
                if np.ndim(value) == 0:
                    numbers[name] = float(value)
            self._metrics.reset()
        return numbers

    def hook(self, context: EstimatorContext) -> TrainingLogHook | None:
        """The hook that writes them, if a configuration asks for it."""
        if context.log_every is None:
            return None
        config = context.config
        iterations = config.tpu_config.iterations
        timed = iterations.unit == "seconds"
        writes = bool(config.save_summary_steps) and context.hosts.is_chief
        return TrainingLogHook(
            batch_size=context.placement.batch_sizes[ModeKeys.TRAIN],
            report=self.numbers,
            directory=context.model_dir if writes else None,
            every_n_steps=None if timed else context.log_every,
            every_n_secs=iterations.value if timed else None,
        )
