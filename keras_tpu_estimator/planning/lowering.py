"""The device loop of a call, lowered for a machine without running it."""

import dataclasses
import logging
import math
from collections.abc import Hashable
from typing import Self

import jax
import numpy as np

from keras_tpu_estimator.base.common.dtype_changes import abstract_array
from keras_tpu_estimator.base.common.machine import Machine
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import InputFn, PyTree
from keras_tpu_estimator.engine.device import shapes
from keras_tpu_estimator.engine.device.host_metrics import HostMetrics
from keras_tpu_estimator.engine.inputs.stacking import Stack, even_share
from keras_tpu_estimator.engine.inputs.unbatched import batch_size
from keras_tpu_estimator.engine.program.steps import (
    EVAL_METRICS,
    METRIC_VALUES,
    PREDICTIONS,
    Step,
)
from keras_tpu_estimator.engine.program.store import VariableStore, slot_owners
from keras_tpu_estimator.planning import compiling
from keras_tpu_estimator.runs import staging
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.evaluation import STEPS_PER_RUN
from keras_tpu_estimator.runs.plan import LoopPlan
from keras_tpu_estimator.runs.prediction_batches import PaddedSteps
from keras_tpu_estimator.runs.staging import StagedStack

_logger = logging.getLogger("keras_tpu_estimator")


@dataclasses.dataclass(frozen=True)
class LoweredLoop:
    """A device loop that has been lowered but not compiled.

    Attributes:
        steps: The maximum number of steps of one call of the loop.
        examples: The number of examples in a step, on all hosts that share it.
        arguments: Shapes and shardings of its arguments, as in `DeviceLoop.arguments`.
        parts_ahead: The number of further inputs of this size on the devices while the
            loop runs.
        host_metrics: The accumulator of metrics on the host, or `None`.
    """

    step: Step
    steps: int
    examples: int
    store: VariableStore
    arguments: tuple[PyTree, ...]
    traced: jax.stages.Traced
    lowered: jax.stages.Lowered
    devices: tuple[jax.Device, ...]
    parts_ahead: int = 0
    host_metrics: HostMetrics | None = None

    @classmethod
    def from_call(
        cls,
        context: EstimatorContext,
        input_fn: InputFn,
        mode: str,
        machine: Machine,
        steps: int | None = None,
    ) -> Self:
        """Lowers the loop of a call of `train`, `evaluate` or `predict`, from one batch
        of the input, and computes nothing.

        PREDICT uses only its host's devices, because each host predicts separately.
        `steps` limits the steps that are staged ahead.
        """
        context = _on(context, mode, machine)
        if machine.num_hosts > 1 and mode != ModeKeys.PREDICT:
            context.check_uses_all(machine.num_hosts)
        if mode == ModeKeys.PREDICT:
            step, batches = _of_prediction(context, input_fn)
            length, ahead = 1, 0
        else:
            step, batches, ahead = _of_steps(context, input_fn, mode, steps)
            length = jax.tree.leaves(batches)[0].shape[0]
        loop = context.runtime.loop
        traced = loop.trace(step, batches)
        return cls(
            step,
            length,
            batch_size(batches, axis=0 if mode == ModeKeys.PREDICT else 1),
            context.runtime.program.store,
            loop.arguments(step, batches),
            traced,
            compiling.lowered(traced),
            loop.devices(step),
            ahead,
            context.runtime.program.host_metrics(step),
        )

    @property
    def arguments_by_kind(self) -> dict[str, PyTree]:
        """The arguments as "variables", "slots", "metrics" and "input"."""
        assigned, unassigned, *metrics, batches = self.arguments
        values = {**assigned, **unassigned}
        owned = slot_owners(self.store.variables)
        # TF1 programs identify slots only by their names.
        slots = values.keys() & (self.store.slots | owned.keys())
        return {
            "variables": {p: values[p] for p in values.keys() - slots},
            "slots": {p: values[p] for p in slots},
            "metrics": metrics,
            "input": batches,
        }

    @property
    def weights(self) -> int:
        """The number of trained numbers on all cores together."""
        return sum(
            math.prod(variable.shape)
            for variable in self.store.variables.values()
            if variable.trainable
        )

    @property
    def predictions(self) -> PyTree:
        """The shapes and dtypes of predictions, or `None` in other modes."""
        if self.step.mode != ModeKeys.PREDICT:
            return None
        _, outputs, _ = self.lowered.out_info
        return outputs[PREDICTIONS]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of an evaluation's results beside loss and global step; empty if
        `metric_fn` fails for zeros.
        """
        if self.step.mode != ModeKeys.EVAL:
            return ()
        *_, stacked, newest = self.lowered.out_info
        outputs = stacked | newest
        if self.host_metrics is None:
            return tuple(outputs.get(METRIC_VALUES, ()))
        try:
            return self.host_metrics.names(outputs[EVAL_METRICS])
        except Exception as error:  # Anything in the user's function.
            _logger.info(
                "`metric_fn` fails for zeros, so the plan has no names of metrics: %s",
                error,
            )
            return ()


def signature(
    context: EstimatorContext,
    input_fn: InputFn,
    mode: str,
    machine: Machine,
    steps: int | None = None,
) -> Hashable:
    """Returns a key that is equal for calls that run the same program; reads one batch
    of the input, and traces nothing.
    """
    context = _on(context, mode, machine)
    with context.pipeline(mode, input_fn, None, 1) as pipeline:
        batch = pipeline.take(1)
    if batch is None:
        return ()
    leaves, structure = jax.tree.flatten((batch.features, batch.labels))
    ahead = 0
    if mode != ModeKeys.PREDICT:
        room = _room(context, mode, batch)
        ahead = _parts_ahead(room, batch, steps)
    kinds = ((leaf.shape, str(leaf.dtype)) for leaf in leaves)
    return ahead, str(structure), *kinds


def _on(context: EstimatorContext, mode: str, machine: Machine) -> EstimatorContext:
    """Returns the context of an estimator on another machine."""
    mode_devices = dataclasses.replace(context.mode_devices, machine=machine)
    mode_devices.check(mode)
    return dataclasses.replace(context, mode_devices=mode_devices)


def _of_steps(
    context: EstimatorContext, input_fn: InputFn, mode: str, most: int | None
) -> tuple[Step, PyTree, int]:
    """Returns a TRAIN or EVAL step, its stacked input, and the parts staged ahead."""
    with context.pipeline(mode, input_fn, None, 1) as pipeline:
        batch, is_replicated = pipeline.take(1), pipeline.is_replicated
    if batch is None:
        raise _empty(mode)
    cores = context.mode_devices.cores
    is_part = cores.are_on_hosts and not is_replicated
    if is_part and batch.examples % cores.topology.replicas_per_host:
        raise ValueError(
            f"A batch of a host must be a multiple of its "
            f"{cores.topology.replicas_per_host} replicas. Received: "
            f"{batch.examples} examples. Make `input_fn` return batches of "
            "params['batch_size'] examples."
        )
    steps = _room(context, mode, batch)

    def stacked(leaf: np.ndarray) -> jax.ShapeDtypeStruct:
        return abstract_array((steps, *leaf.shape[1:]), leaf.dtype)

    features, labels = jax.tree.map(stacked, (batch.features, batch.labels))
    layout = context.runtime.program.layout(mode)
    batches = shapes.of_steps(layout, mode, features, labels, is_part)
    batch = dataclasses.replace(batch, is_part=is_part)
    staged = StagedStack(mode, batch, batches, range(1), ends_loop=True)
    ahead = _parts_ahead(steps, batch, most)
    return staged.prepare(context.runtime), batches, ahead


def _of_prediction(context: EstimatorContext, input_fn: InputFn) -> tuple[Step, PyTree]:
    """Returns a step of PREDICT and its batch."""
    mode = ModeKeys.PREDICT
    with context.pipeline(mode, input_fn, None, 1) as pipeline:
        first = PaddedSteps(pipeline, context.mode_devices.input_size(mode)).next()
    if first is None:
        raise _empty(mode)
    batches = shapes.of_steps(
        context.runtime.program.layout(mode),
        mode,
        first.features,
        first.is_padding,
    )
    return context.runtime.prepare(mode, first.features, first.is_padding), batches


def _parts_ahead(steps: int, batch: Stack, most: int | None) -> int:
    """Returns the number of parts of a loop that may wait on the devices."""
    ahead = staging.stacks_ahead(steps * batch.step_bytes)
    # The call may have fewer steps.
    return ahead if most is None else min(ahead, -(-most // steps) - 1)


def _room(context: EstimatorContext, mode: str, batch: Stack) -> int:
    """Returns the maximum number of such steps in a device program."""
    if context.config.fast_dev_run:
        return 1
    iterations = context.iterations if mode == ModeKeys.TRAIN else STEPS_PER_RUN
    return even_share(
        LoopPlan(iterations, None).capacity,
        batch.step_bytes,
        context.mode_devices.request(mode, {}, True, 1).stack_size,
    )


def _empty(mode: str) -> ValueError:
    return ValueError(
        f"The input of mode {mode!r} must have at least one batch. Received: an "
        "empty input. Make `input_fn` return a batch to plan with."
    )
