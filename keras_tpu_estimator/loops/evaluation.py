"""One call of `evaluate`, over every example once."""

import logging
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.base.iterations import IterationsPerLoop
from keras_tpu_estimator.base.modes import ModeKeys
from keras_tpu_estimator.device.runtime import Runtime
from keras_tpu_estimator.hooks.session_run_hook import Hook
from keras_tpu_estimator.inputs.infeed import Infeed
from keras_tpu_estimator.loops.host_calls import call_for_steps
from keras_tpu_estimator.loops.live_model import hooks_around
from keras_tpu_estimator.loops.outfeed import HostMetrics
from keras_tpu_estimator.loops.outfeed import Outfeed
from keras_tpu_estimator.loops.progress import Progress
from keras_tpu_estimator.loops.staging import StagedSteps
from keras_tpu_estimator.loops.staging import first_step
from keras_tpu_estimator.program.steps import Step
from keras_tpu_estimator.program.store import Values
from keras_tpu_estimator.summary.collecting import Collected

_logger = logging.getLogger("keras_tpu_estimator")

# Steps of one run: enough to keep the devices busy, few enough to fit there.
STEPS_PER_RUN = IterationsPerLoop(32, "count")


class EvaluationLoop:
    """Feeds, runs and accompanies the device loop of one `evaluate`.

    Args:
        runtime: The model and its values.
        infeed: The steps, on the devices.
        steps: How many were asked for, or `None`; for the log.

    Attributes:
        summaries: What `model_fn` recorded in the last step, on the devices.
    """

    def __init__(
        self, runtime: Runtime, infeed: Infeed[StagedSteps], steps: int | None
    ):
        self._runtime = runtime
        self._infeed = infeed
        self._steps = steps
        self._done = 0
        self._metrics = runtime.model.metrics_state()
        self._result: dict[str, Any] = {}
        self.summaries: Sequence[Collected] = ()

    def run(
        self,
        step: Step,
        first: StagedSteps,
        values: Values,
        hooks: Iterable[Hook],
        metrics: HostMetrics | None,
    ) -> dict[str, Any]:
        """Evaluates until the input, the steps or a hook ends it.

        Args:
            step: The step of EVAL.
            first: The first run's steps.
            values: The variables' values by path.
            hooks: Called around each run.
            metrics: What `metric_fn` is counted in, if there is one.

        Returns:
            The mean loss over examples and the metrics by name.
        """
        progress = Progress(values)
        hook_list = hooks_around(hooks, self._runtime, progress, ModeKeys.EVAL)
        hook_list.begin()
        hook_list.after_create_session()
        with Outfeed(_consumer(metrics, step, progress.step)) as outfeed:
            staged: StagedSteps | None = first
            while True:
                hooked = hook_list.before_run()
                if staged is None:
                    break
                hooked.start()
                self._run_loop(staged, progress, outfeed, hooked.fetches)
                if hooked.after_run() or self._done == self._steps:
                    break
                staged = next(self._infeed, None)
        result = dict(self._result) if metrics is None else metrics.result()
        progress.outputs = result
        hook_list.end()
        return result | {"loss": progress.fetch("loss")}

    def _run_loop(
        self,
        staged: StagedSteps | None,
        progress: Progress,
        outfeed: Outfeed,
        fetch: tuple[str, ...],
    ) -> None:
        """Runs the parts of one loop."""
        progress.start_loop()
        while staged is not None:
            outfeed.put(self._run_part(staged, progress, fetch))
            self._done += staged.batch.steps
            if staged.ends_loop:
                break
            staged = next(self._infeed, None)
        total = f"/{self._steps}" if self._steps else ""
        _logger.info("Evaluation [%d%s]", self._done, total)

    def _run_part(
        self, staged: StagedSteps, progress: Progress, fetch: tuple[str, ...]
    ) -> Any:
        model = self._runtime.model
        step = model.prepare(ModeKeys.EVAL, *first_step(staged.batch))
        state = model.state(progress.values, slots=False)
        others, self._metrics, losses, outputs = self._runtime.loop.evaluate(
            state, self._metrics, staged.data, step.named_among(fetch)
        )
        if step.local:
            updated = model.values((state[0], others, []))
            progress.values = progress.values | updated
        if "metric_values" in outputs:
            last = jax.tree.map(lambda a: a[-1], outputs["metric_values"])
            self._result = jax.tree.map(lambda a: np.asarray(a)[()], last)
        progress.ran(0, losses, outputs)  # The global step stands still.
        self.summaries = progress.summaries
        return outputs


def _consumer(metrics: HostMetrics | None, step: Step, global_step: int) -> Any:
    def consume(outputs: dict[str, Any]) -> None:
        if metrics is not None:
            metrics.update(outputs["eval_metrics"])
        if "host_call" in outputs:
            tensors = outputs["host_call"]
            steps = len(jax.tree.leaves(tensors)[0])
            call_for_steps(step.host_call, tensors, [global_step] * steps)

    return consume
