"""One call of `train`, from the first loop to the last checkpoint."""

import functools
from collections.abc import Iterable
from typing import Any

from keras_tpu_estimator.hooks.callback_hook import with_callbacks
from keras_tpu_estimator.hooks.session_run_hook import Hook
from keras_tpu_estimator.hooks.session_run_hook import HookList
from keras_tpu_estimator.hooks.session_run_hook import Session
from keras_tpu_estimator.inputs.infeed import Infeed
from keras_tpu_estimator.loops.feeding import Fed
from keras_tpu_estimator.loops.feeding import first_step
from keras_tpu_estimator.loops.host_calls import call_for_steps
from keras_tpu_estimator.loops.outfeed import Outfeed
from keras_tpu_estimator.loops.plan import LoopPlan
from keras_tpu_estimator.loops.progress import Progress
from keras_tpu_estimator.modes import ModeKeys
from keras_tpu_estimator.program.steps import Step
from keras_tpu_estimator.runtime import Runtime


class TrainingLoop:
    """Feeds, runs and accompanies the device loop of one `train`.

    Args:
        runtime: The model and its values.
        plan: How many steps each run makes.
        infeed: The steps, on the devices.
        host_call_every: A `host_call` is made for every so many steps.
    """

    def __init__(
        self,
        runtime: Runtime,
        plan: LoopPlan,
        infeed: Infeed[Fed],
        host_call_every: int = 1,
    ):
        self._runtime = runtime
        self._plan = plan
        self._infeed = infeed
        self._host_call_every = host_call_every

    def run(
        self,
        step: Step,
        first: Fed,
        progress: Progress,
        session: Session,
        hooks: Iterable[Hook],
    ) -> None:
        """Trains until the input, the plan or a hook ends it.

        Args:
            step: The step of TRAIN.
            first: The first run's steps.
            progress: Is kept up to date, also if an error ends the loop.
            session: What the hooks see.
            hooks: Called around each run.
        """
        hook_list = HookList(with_callbacks(hooks), session)
        hook_list.begin()
        hook_list.after_create_session()
        consume = functools.partial(
            call_for_steps, step.host_call, every=self._host_call_every
        )
        with Outfeed(consume) as outfeed:
            fed: Fed | None = first
            while True:
                hooked = hook_list.before_run()
                if fed is None:
                    break
                hooked.start()
                self._run_loop(fed, progress, outfeed, hooked.fetches)
                if hooked.after_run() or self._plan.is_done:
                    break
                fed = next(self._infeed, None)
        hook_list.end()

    def _run_loop(
        self,
        fed: Fed | None,
        progress: Progress,
        outfeed: Outfeed,
        fetch: tuple[str, ...],
    ) -> None:
        """Runs the parts of one loop."""
        steps = 0
        progress.start_loop()
        metrics = self._runtime.model.metrics_state()
        while fed is not None:
            outputs, metrics = self._run_part(fed, metrics, progress, fetch)
            if "host_call" in outputs:
                first = progress.step - fed.batch.steps + 1
                numbers = range(first, progress.step + 1)
                outfeed.put(outputs["host_call"], numbers)
            steps += fed.batch.steps
            if fed.ends_loop:
                break
            fed = next(self._infeed, None)
        self._plan.ran(steps)

    def _run_part(
        self,
        fed: Fed,
        metrics: list[Any],
        progress: Progress,
        fetch: tuple[str, ...],
    ) -> tuple[Any, list[Any]]:
        # The shape of a last, smaller batch is new, and its step with it.
        model = self._runtime.model
        step = model.prepare(ModeKeys.TRAIN, *first_step(fed.batch))
        # A hook may have evaluated, with variables that are new to the model.
        progress.values = self._runtime.complete(progress.values)
        state, metrics, losses, outputs = self._runtime.loop.train(
            model.state(progress.values),
            metrics,
            fed.data,
            step.named_among(fetch),
        )
        progress.values = progress.values | model.values((*state, []))
        progress.ran(fed.batch.steps, losses, outputs)
        return outputs, metrics
