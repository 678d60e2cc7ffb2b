"""Copying stacked steps to the devices before they are wanted."""

import dataclasses
from typing import Any

import jax

from keras_tpu_estimator.inputs.batch import Batch
from keras_tpu_estimator.inputs.infeed import Infeed
from keras_tpu_estimator.inputs.pipeline import Pipeline
from keras_tpu_estimator.loops.plan import LoopPlan
from keras_tpu_estimator.runtime import Runtime


@dataclasses.dataclass(frozen=True)
class Fed:
    """Steps on the host, and the same steps on the devices."""

    batch: Batch
    data: Any


def feed_ahead(
    runtime: Runtime, mode: str, pipeline: Pipeline, plan: LoopPlan
) -> Infeed[Fed]:
    """Copies the steps of coming loops to the devices, ahead of time."""
    sizes = iter(plan)

    def produce() -> Fed | None:
        size = next(sizes, None)
        batch = None if size is None else pipeline.take(size)
        if batch is None:
            return None
        plan.put_back(size - batch.steps)
        data = runtime.loop.put(mode, batch.features, batch.labels)
        return Fed(batch, data)

    return Infeed(produce)


def first_step(batch: Batch) -> tuple[Any, Any]:
    """The features and labels of the first of some stacked steps."""
    return jax.tree.map(lambda a: a[0], (batch.features, batch.labels))
