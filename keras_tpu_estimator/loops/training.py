"""One call of `train`, from the first loop to the last checkpoint."""

import time
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.base.modes import ModeKeys
from keras_tpu_estimator.device.runtime import Runtime
from keras_tpu_estimator.hooks.callback_hook import with_callbacks
from keras_tpu_estimator.hooks.hook_list import HookList
from keras_tpu_estimator.hooks.session import Session
from keras_tpu_estimator.hooks.session_run_hook import Hook
from keras_tpu_estimator.inputs.infeed import Infeed
from keras_tpu_estimator.loops.host_calls import call_for_steps
from keras_tpu_estimator.loops.outfeed import HostMetrics
from keras_tpu_estimator.loops.outfeed import Outfeed
from keras_tpu_estimator.loops.plan import LoopPlan
from keras_tpu_estimator.loops.progress import Progress
from keras_tpu_estimator.loops.staging import StagedSteps
from keras_tpu_estimator.loops.staging import first_step
from keras_tpu_estimator.model_fn.spec_checks import OwnNames
from keras_tpu_estimator.program.steps import Step

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


class TrainingLoop:
    """Feeds, runs and accompanies the device loop of one `train`.

    Args:
        runtime: The model and its values.
        step: The step of TRAIN.
        plan: How many steps each run makes.
        infeed: The steps, on the devices.
        progress: Is kept up to date, also if an error ends the loop.
        metrics: What `train_metrics` are counted in, if there are any.
        host_call_every: A `host_call` is made for every so many steps.
    """

    def __init__(
        self,
        runtime: Runtime,
        step: Step,
        plan: LoopPlan,
        infeed: Infeed[StagedSteps],
        progress: Progress,
        metrics: HostMetrics | None = None,
        host_call_every: int = 1,
    ):
        self._runtime = runtime
        self._step = step
        self._plan = plan
        self._infeed = infeed
        self._progress = progress
        self._metrics = metrics
        self._host_call_every = host_call_every
        self._outfeed: Outfeed | None = None
        self._reported_at = time.monotonic()

    def run(
        self, first: StagedSteps, session: Session, hooks: Iterable[Hook]
    ) -> None:
        """Trains until the input, the plan or a hook ends it.

        Args:
            first: The first run's steps.
            session: What the hooks see.
            hooks: Called around each run.
        """
        hook_list = HookList(with_callbacks(hooks), session)
        hook_list.begin()
        hook_list.after_create_session()
        with Outfeed(self._consume) as self._outfeed:
            staged: StagedSteps | None = first
            while True:
                hooked = hook_list.before_run()
                if staged is None:
                    break
                hooked.start()
                self._run_loop(staged, hooked.fetches)
                if hooked.after_run() or self._plan.is_done:
                    break
                staged = next(self._infeed, None)
        hook_list.end()

    def report(self) -> dict[str, float]:
        """Numbers of the time since they were asked for last, by name."""
        now = time.monotonic()
        reports = jax.device_get(self._progress.reports)
        numbers = {name: float(value) for name, value in reports.items()}
        elapsed = max(now - self._reported_at, 1e-9)
        numbers["input_wait"] = self._infeed.take_waited_secs() / elapsed
        self._reported_at = now
        if self._metrics is not None and self._outfeed is not None:
            self._outfeed.wait()
            for name, value in self._metrics.result().items():
                if np.ndim(value) == 0:
                    numbers[name] = float(value)
            self._metrics.reset()
        return numbers

    def _run_loop(
        self, staged: StagedSteps | None, fetch: tuple[str, ...]
    ) -> None:
        """Runs the parts of one loop."""
        steps = 0
        self._progress.start_loop()
        metrics = self._runtime.model.metrics_state()
        while staged is not None:
            outputs, metrics = self._run_part(staged, metrics, fetch)
            if "host_call" in outputs or "train_metrics" in outputs:
                last = self._progress.step
                numbers = range(last - staged.batch.steps + 1, last + 1)
                self._outfeed.put(outputs, numbers)
            steps += staged.batch.steps
            if staged.ends_loop:
                break
            staged = next(self._infeed, None)
        self._plan.ran(steps)

    def _run_part(
        self, staged: StagedSteps, metrics: list[Any], fetch: tuple[str, ...]
    ) -> tuple[Any, list[Any]]:
        # The shape of a last, smaller batch is new, and its step with it.
        model, progress = self._runtime.model, self._progress
        step = model.prepare(ModeKeys.TRAIN, *first_step(staged.batch))
        # A hook may have evaluated, with variables that are new to the model.
        progress.values = self._runtime.complete(progress.values)
        state, metrics, losses, outputs = self._runtime.loop.train(
            model.state(progress.values),
            metrics,
            staged.data,
            step.named_among(fetch),
        )
        progress.values = progress.values | model.values((*state, []))
        progress.ran(staged.batch.steps, losses, outputs)
        return outputs, metrics

    def _consume(self, outputs: dict[str, Any], numbers: Sequence[int]) -> None:
        if "host_call" in outputs:
            call_for_steps(
                self._step.host_call,
                outputs["host_call"],
                numbers,
                self._host_call_every,
            )
        if self._metrics is not None:
            self._metrics.update(outputs["train_metrics"])
