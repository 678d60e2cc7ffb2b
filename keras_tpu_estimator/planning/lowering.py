"""The loop that a call would run on a machine, lowered without running it."""

import dataclasses
import logging
import math
from collections.abc import Hashable
from typing import Self

import jax
import numpy as np

from keras_tpu_estimator.engine.device import shapes
from keras_tpu_estimator.engine.device.host_metrics import HostMetrics
from keras_tpu_estimator.engine.inputs.batch import StackedSteps
from keras_tpu_estimator.engine.inputs.stacking import even_share
from keras_tpu_estimator.engine.inputs.unbatched import batch_size
from keras_tpu_estimator.engine.program.steps import METRIC_VALUES, Step
from keras_tpu_estimator.engine.program.store import VariableStore, slot_owners
from keras_tpu_estimator.ground.base.abstract_arrays import abstract_array
from keras_tpu_estimator.ground.base.machine import Machine
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.types import InputFn, Nest
from keras_tpu_estimator.planning import compiling
from keras_tpu_estimator.runs import staging
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.evaluation import STEPS_PER_RUN
from keras_tpu_estimator.runs.plan import LoopPlan
from keras_tpu_estimator.runs.prediction_batches import PaddedSteps
from keras_tpu_estimator.runs.staging import StagedSteps

_logger = logging.getLogger("keras_tpu_estimator")


@dataclasses.dataclass(frozen=True)
class LoweredLoop:
    """A device loop that is still to be compiled.

    Attributes:
        step: What it repeats.
        steps: How often one program can do so.
        examples: Those of a step, of all hosts that share it.
        store: The variables of the program.
        arguments: Shapes and places of what it takes, as
            `DeviceLoop.arguments` has them.
        traced: The loop.
        lowered: The same for its devices.
        devices: Those, in their order.
        parts_ahead: How many more inputs like its own are on the devices
            while it runs. Defaults to 0.
        host_metrics: What counts the metrics on the host, or `None`.
    """

    step: Step
    steps: int
    examples: int
    store: VariableStore
    arguments: tuple[Nest, ...]
    traced: jax.stages.Traced
    lowered: jax.stages.Lowered
    devices: tuple[jax.Device, ...]
    parts_ahead: int = 0
    host_metrics: HostMetrics | None = None

    @classmethod
    def of(
        cls,
        context: EstimatorContext,
        input_fn: InputFn,
        mode: str,
        machine: Machine,
        steps: int | None = None,
    ) -> Self:
        """The loop of a call of `train`, `evaluate` or `predict`.

        One batch of the input is read, and nothing is computed.

        Args:
            context: An estimator's functions and settings.
            input_fn: The user's function.
            mode: A value of `ModeKeys`.
            machine: The devices. In PREDICT those of its host are used, for
                hosts predict by themselves.
            steps: Those of the call, of which no more wait on the devices.
                Defaults to `None`, for many.

        Raises:
            ValueError: Settings, model, input and machine do not fit each
                other, or the input is empty.
            CompileError: JAX cannot lower an operation for these devices.
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
    def arguments_by_kind(self) -> dict[str, Nest]:
        """The same arguments as "variables", "slots", "metrics" and "input"."""
        assigned, others, *metrics, batches = self.arguments
        values = {**assigned, **others}
        owned = slot_owners(self.store.variables)
        # Programs of TF1 have them by name alone.
        slots = values.keys() & (self.store.slots | owned.keys())
        return {
            "variables": {p: values[p] for p in values.keys() - slots},
            "slots": {p: values[p] for p in slots},
            "metrics": metrics,
            "input": batches,
        }

    @property
    def weights(self) -> int:
        """How many numbers are trained, on all cores together."""
        return sum(
            math.prod(variable.shape)
            for variable in self.store.variables.values()
            if variable.trainable
        )

    @property
    def predictions(self) -> Nest:
        """Shapes and dtypes of predictions, or `None` in other modes."""
        if self.step.mode != ModeKeys.PREDICT:
            return None
        _, outputs, _ = self.lowered.out_info
        return outputs["predictions"]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what an evaluation returns beside loss and global step.

        None, if `metric_fn` does not take zeros.
        """
        if self.step.mode != ModeKeys.EVAL:
            return ()
        *_, stacked, newest = self.lowered.out_info
        outputs = stacked | newest
        if self.host_metrics is None:
            return tuple(outputs.get(METRIC_VALUES, ()))
        try:
            return self.host_metrics.names(outputs["eval_metrics"])
        except Exception as error:  # Anything in the user's function.
            _logger.info("`metric_fn` does not take zeros: %s", error)
            return ()


def signature(
    context: EstimatorContext,
    input_fn: InputFn,
    mode: str,
    machine: Machine,
    steps: int | None = None,
) -> Hashable:
    """Returns a key that is equal for calls that run the same program.

    One batch of the input is read, and nothing is traced.

    Args:
        context: An estimator's functions and settings.
        input_fn: The user's function.
        mode: A value of `ModeKeys`.
        machine: The devices.
        steps: As in `LoweredLoop.of`.

    Raises:
        ValueError: Settings, input and machine do not fit each other.
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
    """An estimator that would run on a machine."""
    mode_devices = dataclasses.replace(context.mode_devices, machine=machine)
    mode_devices.check(mode)
    return dataclasses.replace(context, mode_devices=mode_devices)


def _of_steps(
    context: EstimatorContext, input_fn: InputFn, mode: str, most: int | None
) -> tuple[Step, Nest, int]:
    """A step of TRAIN or EVAL, what a program has room for, and parts ahead."""
    with context.pipeline(mode, input_fn, None, 1) as pipeline:
        batch, is_replicated = pipeline.take(1), pipeline.is_replicated
    if batch is None:
        raise _empty(mode)
    cores = context.mode_devices.cores
    is_part = cores.are_on_hosts and not is_replicated
    if is_part and batch.examples % cores.topology.replicas_per_host:
        raise ValueError(
            f"A batch of a host should be a multiple of its "
            f"{cores.topology.replicas_per_host} replicas. Received "
            f"{batch.examples} examples: all hosts would run it as one core "
            "does. Let input_fn give batches of params['batch_size']."
        )
    steps = _room(context, mode, batch)

    def stacked(leaf: np.ndarray) -> jax.ShapeDtypeStruct:
        return abstract_array((steps, *leaf.shape[1:]), leaf.dtype)

    features, labels = jax.tree.map(stacked, (batch.features, batch.labels))
    layout = context.runtime.program.layout(mode)
    batches = shapes.of_steps(layout, mode, features, labels, is_part)
    staged = StagedSteps(
        mode, batch, batches, range(1), ends_loop=True, is_part=is_part
    )
    ahead = _parts_ahead(steps, batch, most)
    return staged.prepare(context.runtime), batches, ahead


def _of_prediction(context: EstimatorContext, input_fn: InputFn) -> tuple[Step, Nest]:
    """A step of PREDICT, and the batch that it takes."""
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


def _parts_ahead(steps: int, batch: StackedSteps, most: int | None) -> int:
    """Returns how many parts of a loop may wait on the devices."""
    ahead = staging.parts_ahead(steps * batch.step_bytes)
    # No more than the call has.
    return ahead if most is None else min(ahead, -(-most // steps) - 1)


def _room(context: EstimatorContext, mode: str, batch: StackedSteps) -> int:
    """Returns how many steps like these a device program has room for."""
    if context.config.fast_dev_run:
        return 1
    iterations = context.iterations if mode == ModeKeys.TRAIN else STEPS_PER_RUN
    return even_share(
        LoopPlan(iterations, None).room,
        batch.step_bytes,
        context.mode_devices.request(mode, {}, True, 1).stack_size,
    )


def _empty(mode: str) -> ValueError:
    return ValueError(
        f"The input of mode {mode!r} is empty. Expected at least one batch "
        "from input_fn, by which to plan."
    )
