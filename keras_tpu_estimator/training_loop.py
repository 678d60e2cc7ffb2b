"""One call of `train`, from the first loop to the last checkpoint."""

import dataclasses
import logging
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.hooks.session_run_hook import HookList
from keras_tpu_estimator.hooks.session_run_hook import Session
from keras_tpu_estimator.hooks.session_run_hook import SessionRunHook
from keras_tpu_estimator.inputs.batch import Batch
from keras_tpu_estimator.inputs.infeed import Infeed
from keras_tpu_estimator.inputs.pipeline import Pipeline
from keras_tpu_estimator.loop_plan import LoopPlan
from keras_tpu_estimator.modes import ModeKeys
from keras_tpu_estimator.outfeed import Outfeed
from keras_tpu_estimator.runtime import Runtime
from keras_tpu_estimator.spec import HostFunction
from keras_tpu_estimator.steps import Step
from keras_tpu_estimator.store import GLOBAL_STEP
from keras_tpu_estimator.store import Values

_logger = logging.getLogger("keras_tpu_estimator")


@dataclasses.dataclass(frozen=True)
class Fed:
    """Steps on the host, and the same steps on the devices."""

    batch: Batch
    data: Any


class TrainingProgress:
    """Where a training loop stands; what hooks fetch from.

    Attributes:
        values: The variables' values by path.
        step: The global step.
        loss: The mean loss of the last run.
    """

    def __init__(self, values: Values):
        self.values = values
        self.step = int(values[GLOBAL_STEP])
        self.loss: Any = np.float32(np.nan)

    def fetch(self, name: str) -> Any:
        """The value of `"global_step"`, `"loss"` or a variable's path."""
        if name == "loss":
            self.loss = np.asarray(self.loss)
            return self.loss
        if name == GLOBAL_STEP:
            return np.int64(self.step)
        if name not in self.values:
            raise KeyError(
                f"Nothing to fetch is called {name!r}. Expected 'loss', "
                f"'global_step' or one of {sorted(self.values)}."
            )
        return self.values[name]


def feed_ahead(
    runtime: Runtime, mode: str, pipeline: Pipeline, sizes: Iterable[int]
) -> Infeed[Fed]:
    """Copies the steps of coming loops to the devices, ahead of time."""
    plan = iter(sizes)

    def produce() -> Fed | None:
        size = next(plan, None)
        batch = None if size is None else pipeline.take(size)
        if batch is None:
            return None
        data = runtime.loop.put(mode, batch.features, batch.labels)
        return Fed(batch, data)

    return Infeed(produce)


def first_step(batch: Batch) -> tuple[Any, Any]:
    """The features and labels of the first of some stacked steps."""
    return jax.tree.map(lambda a: a[0], (batch.features, batch.labels))


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
        progress: TrainingProgress,
        hooks: Iterable[SessionRunHook],
    ) -> None:
        """Trains until the input, the plan or a hook ends it.

        Args:
            step: The step of TRAIN.
            first: The first run's steps.
            progress: Is kept up to date, also if an error ends the loop.
            hooks: Called around each run.
        """
        hook_list = HookList(hooks, Session(progress.fetch))
        hook_list.begin()
        hook_list.after_create_session()
        consume = _host_caller(step.host_call, self._host_call_every)
        with Outfeed(consume) as outfeed:
            fed: Fed | None = first
            while True:
                hooked = hook_list.before_run()
                if fed is None:
                    break
                outputs = self._run_once(fed, progress)
                if "host_call" in outputs:
                    outfeed.put(outputs["host_call"])
                if hooked.after_run():
                    break
                fed = next(self._infeed, None)
        hook_list.end()

    def _run_once(self, fed: Fed, progress: TrainingProgress) -> Any:
        # The shape of a last, smaller batch is new, and its step with it.
        model = self._runtime.model
        model.prepare(ModeKeys.TRAIN, *first_step(fed.batch))
        state, loss, outputs = self._runtime.loop.train(
            model.state(progress.values), fed.data
        )
        progress.values = progress.values | model.values((*state, []))
        progress.step += fed.batch.steps
        progress.loss = loss
        self._plan.ran(fed.batch.steps)
        return outputs


def _host_caller(
    host_call: HostFunction | None, every: int
) -> Callable[[Any], None]:
    def consume(steps: Any) -> None:
        steps = jax.tree.map(np.asarray, steps)
        for index in range(0, len(jax.tree.leaves(steps)[0]), every):
            host_call.call(jax.tree.map(lambda a, i=index: a[i], steps))

    return consume
