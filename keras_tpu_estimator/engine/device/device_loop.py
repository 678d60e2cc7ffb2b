"""The device loop: many steps as one device program.

A compiled loop over stacked batches, with what training assigns donated,
replaces Keras's Python loop over single steps. The number of steps is an
argument, so that loops of all lengths share one compiled program.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.engine.device import shapes
from keras_tpu_estimator.engine.device.distributed_program import (
    DistributedProgram,
    MetricsState,
)
from keras_tpu_estimator.engine.device.executables import Executables
from keras_tpu_estimator.engine.device.nan_search import Compiled, checking_nans
from keras_tpu_estimator.engine.device.scan import scan_with_newest
from keras_tpu_estimator.engine.device.step_values import StepValues
from keras_tpu_estimator.engine.device.stored_loops import StoredLoop
from keras_tpu_estimator.engine.device.variable_places import VariablePlaces
from keras_tpu_estimator.engine.inputs.unbatched import batch_size
from keras_tpu_estimator.engine.program.steps import (
    CUT,
    NAMED,
    NEWEST,
    STEP_LOSS,
    STEP_NUMBERS,
    Outputs,
    Step,
)
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.types import Features, Labels, Nest
from keras_tpu_estimator.ground.base.waiting import Waiting, tell
from keras_tpu_estimator.ground.mesh import transfers
from keras_tpu_estimator.ground.tracing.variables import ArraysByPath

# What of the outputs leaves the device in PREDICT.
_PREDICTED: tuple[str, ...] = ("predictions", "host_call", CUT)


class DeviceLoop:
    """Runs a program's steps on the devices, compiled once for each shape.

    Args:
        program: The program whose steps are run.
        debug_nans: Whether training finds the operation that the first NaN
            comes from. Defaults to `False`.
        waiting: Shows what takes its time. Defaults to none that does.
        executables: What may have been compiled ahead of time. Defaults to
            none. What finds NaN is not among them.
    """

    def __init__(
        self,
        program: DistributedProgram,
        places: VariablePlaces,
        debug_nans: bool = False,
        waiting: Waiting | None = None,
        executables: Executables | None = None,
    ):
        self._waiting = waiting or Waiting()
        self._program = program
        self._places = places

        def compiled(
            name: str, function: Callable[..., Nest], **settings: Any
        ) -> Compiled:
            static = ("step", "fetch")
            made: Compiled = jax.jit(
                _called(name, function), static_argnames=static, **settings
            )
            if executables is None:
                return made
            shapes_of, devices_of = self._arguments_for, self.devices
            return StoredLoop(made, shapes_of, devices_of, executables)

        self._train = (
            checking_nans(self._run)
            if debug_nans
            else compiled("train_steps", self._run, donate_argnums=0)
        )
        self._evaluate = compiled("evaluate_steps", self._run)
        self._predict = compiled("predict_step", self._run_one)
        self._predict_some: Callable[..., Nest] = jax.jit(
            _called("predict_steps", self._run_some),
            static_argnames=("step", "fetch"),
        )
        self._jitted: dict[Step, Callable[..., Nest]] = {}
        self._result_bytes: dict[Step, int] = {}
        # Of the first batch of each mode.
        self._usual_sizes: dict[str, int] = {}

    def put(
        self,
        mode: str,
        features: Features,
        labels: Labels,
        is_part: bool = False,
    ) -> Nest:
        """Copies stacked steps to the devices, split over the cores.

        Args:
            features: Nest of arrays of shape `[steps, batch, ...]`, which
                nothing changes any more.
            labels: The same, or `None`.
            is_part: Whether they are the part of this host alone. Defaults to
                `False`.

        Returns:
            What `run` takes.
        """
        layout, cores = (
            self._program.layout(mode),
            self._program.layout(mode).cores,
        )
        if cores.mesh is None and (
            # Few steps: a compiled function copies them by itself, and faster.
            mode != ModeKeys.TRAIN
            # Or it takes them where they are.
            or cores.platform == "cpu"
        ):
            return features, labels
        if is_part:
            return transfers.put_parts(cores, (features, labels), axis=1)
        size = batch_size((features, labels), axis=1)
        sharding = layout.sharding(size, axis=1)
        return transfers.put_whole(cores, (features, labels), sharding)

    def put_one(self, features: Features, is_padding: np.ndarray) -> Nest:
        """Copies one step of prediction to the devices.

        Args:
            features: Nest of arrays of shape `[batch, ...]`.
            is_padding: Booleans of shape `[batch]`.

        Returns:
            What `predict` takes.
        """
        layout = self._program.layout(ModeKeys.PREDICT)
        if layout.cores.mesh is None:
            return features, is_padding
        sharding = layout.sharding(batch_size((features, is_padding)))
        return jax.device_put((features, is_padding), sharding)

    def no_metrics(self, mode: str) -> MetricsState:
        """Returns the metrics' values before the first step, on the devices.

        JAX would compile a program for arrays of the host, and another one for
        those that the program has returned.
        """
        cores = self._program.layout(mode).cores
        metrics: MetricsState = transfers.put_whole(
            cores, self._program.metrics_state(), cores.replicated
        )
        return metrics

    def arguments(self, step: Step, batches: Nest) -> tuple[Nest, ...]:
        """Shapes and places of all that `run` or `predict` passes on.

        Args:
            batches: What `shapes.of_steps` has returned.

        Returns:
            The values by path that the step assigns, the others, in TRAIN and
            EVAL the metrics' and the steps to make, and the batches.
        """
        alone = step.mode == ModeKeys.PREDICT
        places = (self._places.own if alone else self._places).of(step.reads)
        values = shapes.of_values(self._program.store, places)
        if alone:
            return *step.split(values), batches
        whole = self._program.layout(step.mode).cores.replicated
        metrics = shapes.of_arrays(self._program.metrics_state(), whole)
        span = shapes.of_arrays(_span(range(0)), whole)
        return *step.split(values), metrics, span, batches

    def devices(self, step: Step) -> tuple[jax.Device, ...]:
        """Those that run a step, in their order."""
        return self._program.layout(step.mode).cores.devices

    def trace(self, step: Step, batches: Nest) -> jax.stages.Traced:
        """Traces what `run` or `predict` compiles, without any value.

        Args:
            batches: What `shapes.of_steps` has returned.
        """
        trace = {
            ModeKeys.TRAIN: self._train.trace,
            ModeKeys.EVAL: self._evaluate.trace,
            ModeKeys.PREDICT: self._predict.trace,
        }[step.mode]
        return trace(*self.arguments(step, batches), step=step, fetch=())

    def run(
        self,
        step: Step,
        values: Mapping[str, jax.Array],
        metrics: MetricsState,
        batches: Nest,
        steps: range,
        fetch: tuple[str, ...] = (),
    ) -> tuple[ArraysByPath, list[jax.Array], StepValues, Outputs]:
        """Makes one step of TRAIN or EVAL for each of some stacked batches.

        Args:
            values: The variables' values by path. In TRAIN those that the
                step assigns are used up.
            metrics: The metrics' values so far.
            batches: What `put` returned.
            steps: The places of the batches to use, at least one.
            fetch: Names of the tensors that are wanted of the last step.

        Returns:
            The new values of what the step assigns; those of the metrics; the
            loss of each step in TRAIN, and the mean after it in EVAL; and the
            other outputs: of every step as `StepValues`, or of the last.
        """
        run = self._train if step.mode == ModeKeys.TRAIN else self._evaluate
        assigned, others = step.split(values)
        with self._waiting:
            changed, counted, losses, stacked, newest = run(
                *(assigned, others, metrics, _span(steps), batches),
                step=step,
                fetch=fetch,
            )
        outputs = StepValues.of(stacked, steps) | newest
        return changed, counted, StepValues(losses, steps), outputs

    def predict(
        self,
        step: Step,
        assigned: ArraysByPath,
        others: ArraysByPath,
        data: Nest,
        fetch: tuple[str, ...] = (),
    ) -> tuple[ArraysByPath, Outputs, Outputs]:
        """Predicts for one batch.

        Args:
            assigned: The values by path of what the step assigns.
            data: What `put_one` returned.
            fetch: Names of other tensors that are wanted.

        Returns:
            The new values of what the step assigns; the outputs; and the other
            tensors by name.
        """
        with self._waiting:
            return self._predict(assigned, others, data, step=step, fetch=fetch)

    def predict_some(
        self,
        step: Step,
        assigned: ArraysByPath,
        others: ArraysByPath,
        data: Nest,
        steps: int,
        fetch: tuple[str, ...] = (),
    ) -> tuple[ArraysByPath, Outputs, Outputs]:
        """Predicts for the first of some stacked batches, in one run.

        Args:
            assigned: As in `predict`.
            others: As in `predict`.
            data: What `put` returned.
            steps: How many batches to predict for, at least one.
            fetch: As in `predict`.

        Returns:
            What `predict` returns: the outputs stacked, in as many rows as
            `data` has, and the other tensors of the last of the batches.
        """
        with self._waiting:
            outputs: tuple[ArraysByPath, Outputs, Outputs]
            outputs = self._predict_some(
                *(assigned, others, _span(range(steps)), data),
                step=step,
                fetch=fetch,
            )
            return outputs

    def result_bytes(
        self, step: Step, features: Features, is_padding: np.ndarray
    ) -> int:
        """Returns the bytes of what a step of PREDICT makes of one batch.

        Args:
            features: Nest of arrays of shape `[batch, ...]`.
            is_padding: Booleans of shape `[batch]`.
        """
        if step not in self._result_bytes:
            layout = self._program.layout(ModeKeys.PREDICT)
            batch = shapes.of_steps(layout, step.mode, features, is_padding)
            assigned, others, _ = self.arguments(step, batch)
            with self._waiting:
                _, outputs = jax.eval_shape(
                    self._jitted_step(step), others | assigned, *batch
                )
            leaves = jax.tree.leaves(_of_prediction(outputs))
            self._result_bytes[step] = sum(
                leaf.size * leaf.dtype.itemsize for leaf in leaves
            )
        return self._result_bytes[step]

    def _jitted_step(self, step: Step) -> Callable[..., Nest]:
        """A step that is traced once for all that use it here."""
        if step not in self._jitted:
            self._jitted[step] = jax.jit(self._program.to_compile(step))
        return self._jitted[step]

    def _tell_compiling(self, step: Step, size: int) -> None:
        """Logs that a step is compiled, and why that happens once more."""
        text = f"Compiling the steps of mode {step.mode!r}"
        usual = self._usual_sizes.setdefault(step.mode, size)
        tell(text if size == usual else f"{text} for a batch of {size}")

    def _arguments_for(self, step: Step, data: Nest) -> tuple[Nest, ...]:
        """What `arguments` has for batches that were put on the devices."""
        place = self._program.layout(step.mode).cores.replicated
        return self.arguments(step, shapes.of_data(data, place))

    def _run(
        self,
        assigned: ArraysByPath,
        others: ArraysByPath,
        metrics: list[jax.Array],
        span: jax.Array,
        batches: Nest,
        *,
        step: Step,
        fetch: tuple[str, ...],
    ) -> tuple[ArraysByPath, list[jax.Array], jax.Array, Outputs, Outputs]:
        self._tell_compiling(step, batch_size(batches, axis=1))
        run_step = functools.partial(self._program.run_step, step)

        def one(state: Nest, batch: Nest) -> tuple[Nest, Nest, Nest]:
            assigned, metrics = state
            # At both ends, or XLA spreads what is whole between two steps.
            assigned = self._places.pinned(assigned)
            changed, metrics, outputs = run_step(others | assigned, metrics, batch)
            mean, own = outputs.pop("loss"), outputs.pop(STEP_LOSS)
            loss = own if step.mode == ModeKeys.TRAIN else mean
            newest = {name: outputs.pop(name, {}) for name in NEWEST}
            newest[NAMED] = _only(newest[NAMED], fetch)
            assigned = self._places.pinned(assigned | changed)
            if not step.counts_once:
                outputs[STEP_NUMBERS] = assigned[GLOBAL_STEP]
            return (assigned, metrics), (loss, outputs), newest

        (assigned, metrics), (losses, stacked), newest = scan_with_newest(
            one, (assigned, metrics), batches, span
        )
        assigned = self._places.pinned(assigned)
        cores = self._program.layout(step.mode).cores
        # Each process reads the flags of its devices.
        cut = stacked.pop(CUT, {})
        stacked, newest = cores.whole_on_hosts((stacked, newest))
        return assigned, metrics, losses, stacked, newest | {CUT: cut}

    def _run_one(
        self,
        assigned: ArraysByPath,
        others: ArraysByPath,
        data: Nest,
        *,
        step: Step,
        fetch: tuple[str, ...],
    ) -> tuple[ArraysByPath, Outputs, Outputs]:
        self._tell_compiling(step, batch_size(data))
        run_step = self._program.to_compile(step)
        changed, outputs = run_step(others | assigned, *data)
        named = _only(outputs.pop(NAMED, {}), fetch)
        return assigned | changed, _of_prediction(outputs), named

    def _run_some(
        self,
        assigned: ArraysByPath,
        others: ArraysByPath,
        span: jax.Array,
        batches: Nest,
        *,
        step: Step,
        fetch: tuple[str, ...],
    ) -> tuple[ArraysByPath, Outputs, Outputs]:
        self._tell_compiling(step, batch_size(batches, axis=1))
        run_step, places = self._jitted_step(step), self._places.own

        def one(assigned: Nest, batch: Nest) -> tuple[Nest, Nest, Nest]:
            assigned = places.pinned(assigned)
            changed, outputs = run_step(others | assigned, *batch)
            named = _only(outputs.get(NAMED, {}), fetch)
            assigned = places.pinned(assigned | changed)
            return assigned, _of_prediction(outputs), named

        return scan_with_newest(one, assigned, batches, span)


def _called(name: str, function: Callable[..., Nest]) -> Callable[..., Nest]:
    """The same function under the name that a profile shows."""

    @functools.wraps(function)
    def run(*args: Nest, **kwargs: Nest) -> Nest:
        return function(*args, **kwargs)

    run.__name__ = name
    return run


def _span(steps: range) -> np.ndarray:
    """Returns the first step and the one after the last, as a program's."""
    return np.array([steps.start, steps.stop], "int32")


def _of_prediction(outputs: Outputs) -> Outputs:
    """Returns the outputs that leave the devices in PREDICT."""
    return {name: outputs[name] for name in _PREDICTED if name in outputs}


def _only(named: Outputs, fetch: tuple[str, ...]) -> Outputs:
    return {name: named[name] for name in fetch}
