"""Copying stacked steps to the devices before they are wanted."""

import dataclasses
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from keras_tpu_estimator.device.runtime import Runtime
from keras_tpu_estimator.inputs.batch import Batch
from keras_tpu_estimator.inputs.infeed import Infeed
from keras_tpu_estimator.inputs.pipeline import Pipeline
from keras_tpu_estimator.loops.plan import LoopPlan


@dataclasses.dataclass(frozen=True)
class StagedSteps:
    """Steps on the host, and the same steps on the devices.

    Attributes:
        batch: The steps on the host.
        data: The steps on the devices.
        ends_loop: Whether the loop that they belong to ends with them.
    """

    batch: Batch
    data: Any
    ends_loop: bool


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
                yield StagedSteps(batch, data, ends_loop=not left)

    staged = stage()
    return Infeed(lambda: next(staged, None), is_cancelled=is_cancelled)


def first_step(batch: Batch) -> tuple[Any, Any]:
    """The features and labels of the first of some stacked steps."""
    first = batch.step(0)
    return first.features, first.labels
