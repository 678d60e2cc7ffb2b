"""A program, and the devices that run its steps."""

import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import jax
import keras
import numpy as np

from keras_tpu_estimator.api.model_fn.spec_checks import EVALUATION_NAMES, OwnNames
from keras_tpu_estimator.base.common import registry
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import Features, Labels, PyTree
from keras_tpu_estimator.base.tracing.variables import ArraysByPath
from keras_tpu_estimator.engine.device.host_metrics import HostMetrics
from keras_tpu_estimator.engine.inputs.unbatched import batch_size
from keras_tpu_estimator.engine.program.steps import (
    LOSS,
    STEP_LOSS,
    BatchLayout,
    Outputs,
    Program,
    ReadsBatches,
    Step,
    StepFunction,
)
from keras_tpu_estimator.engine.program.store import VariableStore

MetricsState: TypeAlias = Sequence[jax.Array | np.ndarray]


class DistributedProgram:
    """A program, with the distribution of each mode's batches over the cores.

    Args:
        layouts: The distribution of the batches of each mode. Other modes run on
            one core.

    Attributes:
        loss_mean: The metric of the mean loss; its values are arguments and
            results of steps.
        prepared: The first step that `prepare` has returned, by mode.
        when_prepared: Functions to call after each `prepare`, which may have
            added variables.
    """

    def __init__(
        self,
        program: Program,
        layouts: Mapping[str, BatchLayout] | None = None,
    ):
        self._program = program
        self._reader = program if isinstance(program, ReadsBatches) else None
        self._layouts = types.MappingProxyType(dict(layouts or {}))
        self.store: VariableStore = program.store
        self.loss_mean = keras.metrics.Mean(name="loss")
        self.prepared: dict[str, Step] = {}
        self.when_prepared: list[Callable[[], None]] = []
        self._host_metrics: dict[tuple[Step, OwnNames], HostMetrics] = {}
        # Two traces at once would each make the variables.
        self._tracing = threading.RLock()

    def layout(self, mode: str) -> BatchLayout:
        """Returns the distribution of a mode's batches over the cores."""
        return self._layouts.get(mode, BatchLayout())

    @property
    def reads_batches(self) -> bool:
        """Whether the program makes tensors of batches on the host."""
        return self._reader is not None

    @property
    def reads_all(self) -> bool:
        """Whether `read` computes tensors of each batch on the host."""
        return self._reader is not None and self._reader.reads_all

    def read(
        self, mode: str, features: Features, labels: Labels, size: int | None = None
    ) -> tuple[Features, Labels]:
        """Returns what the devices receive for a batch of the user.

        A smaller batch is later padded to `size`, if given.
        """
        if self._reader is None:
            return features, labels
        return self._reader.read(mode, self.layout(mode), features, labels, size)

    def step(self, mode: str, features: Features, labels: Labels = None) -> Step:
        """Returns the step for inputs like these, traced at the first call.

        Args:
            features: Pytree of arrays, batch first.
        """
        step_input = self.layout(mode).step_input(features, labels)
        with self._tracing:
            return self._program.step(mode, step_input)

    def prepare(self, mode: str, features: Features, labels: Labels = None) -> Step:
        """Returns a step before it runs, and reports new variables."""
        with self._tracing:
            step = self.step(mode, features, labels)
            self.prepared.setdefault(mode, step)
            for notify in self.when_prepared:
                notify()
            return step

    def to_compile(self, step: Step) -> StepFunction:
        """Returns a step's function in its form for the cores that run it."""
        if self.layout(step.mode).cores.platform == "cpu":
            tuned: StepFunction = registry.part("cpu").tuned(step.function)
            return tuned
        return step.function

    def run_step(
        self,
        step: Step,
        values: ArraysByPath,
        metrics: list[jax.Array],
        batch: PyTree,
    ) -> tuple[ArraysByPath, list[jax.Array], Outputs]:
        """Runs one step of training or evaluation, as a pure function.

        Args:
            values: The values that the step reads, by path.
            metrics: The values of the metrics' variables.
            batch: A pair of features and labels.

        Returns:
            The changed values, the metrics' new values, and the outputs. `loss`
            is the mean over all steps so far, and `STEP_LOSS` the step's loss.
        """
        changed, outputs = self.to_compile(step)(values, *batch)
        is_mean_of_steps = (
            step.mode == ModeKeys.TRAIN or not step.additions.weighs_examples
        )
        weight = 1 if is_mean_of_steps else batch_size(batch)
        metrics = self.loss_mean.stateless_update_state(
            metrics, outputs[LOSS], sample_weight=weight
        )
        mean = self.loss_mean.stateless_result(metrics)
        outputs = outputs | {LOSS: mean, STEP_LOSS: outputs[LOSS]}
        return changed, metrics, outputs

    def host_metrics(
        self, step: Step, own_names: OwnNames = EVALUATION_NAMES
    ) -> HostMetrics | None:
        """Returns new counts for a step's `metric_fn`, compiled at most once.

        It returns `None` if the step has no `metric_fn`.
        """
        if step.metric_fn is None:
            return None
        key = step, own_names
        if key not in self._host_metrics:
            make = registry.part("host_metrics")
            self._host_metrics[key] = make(step.metric_fn, own_names)
        return self._host_metrics[key].another()

    def directions(self) -> dict[str, str]:
        """Returns the Keras metrics that should rise ("up") or fall ("down").

        Metrics of a `metric_fn` are known after its first call.
        """
        steps = [step.directions for step in self.prepared.values()]
        counted = [metrics.directions for metrics in self._host_metrics.values()]
        return {
            k: v for directions in (*steps, *counted) for k, v in directions.items()
        }

    def metrics_state(self) -> MetricsState:
        """Returns the initial values of the metrics."""
        variables = self.loss_mean.variables
        return [np.zeros(v.shape, v.dtype) for v in variables]
