"""Copying stacked steps to the devices before they are wanted."""

import dataclasses
from collections.abc import Callable
from collections.abc import Iterator

from keras_tpu_estimator.base.types import Nest
from keras_tpu_estimator.device.runtime import Runtime
from keras_tpu_estimator.inputs.batch import Batch
from keras_tpu_estimator.inputs.infeed import Infeed
from keras_tpu_estimator.inputs.pipeline import Pipeline
from keras_tpu_estimator.loops.plan import LoopPlan
from keras_tpu_estimator.program.steps import Step


@dataclasses.dataclass(frozen=True)
class StagedSteps:
    """Steps on the host, and the same steps on the devices.

    Attributes:
        mode: A value of `ModeKeys`.
        batch: The steps on the host.
        data: The steps on the devices.
        ends_loop: Whether the loop that they belong to ends with them.
    """

    mode: str
    batch: Batch
    data: Nest
    ends_loop: bool

    def prepare(self, runtime: Runtime) -> Step:
        """The program's step for batches of this shape."""
        first = self.batch.step(0)
        return runtime.model.prepare(self.mode, first.features, first.labels)


def stage_ahead(
    runtime: Runtime,
    mode: str,
    pipeline: Pipeline,
    plan: LoopPlan,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Infeed[StagedSteps]:
    """Copies the steps of coming loops to the devices, ahead of time.

    A loop is fed in several parts if it is large, or has batches of two sizes.

    Args:
        runtime: Knows the devices.
        mode: A value of `ModeKeys`.
        pipeline: The steps.
        plan: How many steps each loop makes.
        is_cancelled: As in `Infeed`. Defaults to never.
    """

    def stage() -> Iterator[StagedSteps]:
        for steps in plan:
            left = steps
            while left:
                batch = pipeline.take(left)
                if batch is None:
                    return
                left -= batch.steps
                data = runtime.loop.put(mode, batch.features, batch.labels)
                yield StagedSteps(mode, batch, data, ends_loop=not left)

    staged = stage()
    return Infeed(lambda: next(staged, None), is_cancelled=is_cancelled)


def parts_of_loop(
    first: StagedSteps, infeed: Infeed[StagedSteps]
) -> Iterator[StagedSteps]:
    """The parts that one loop is fed in, as far as the input has them."""
    staged: StagedSteps | None = first
    while staged is not None:
        yield staged
        staged = None if staged.ends_loop else next(infeed, None)
