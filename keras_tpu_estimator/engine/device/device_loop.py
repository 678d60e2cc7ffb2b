"""The device loop: many steps as one device program.

A compiled loop over stacked batches replaces Keras's Python loop over single
steps. It donates the arrays that training assigns. The number of steps is an
argument, so that loops of all lengths share one compiled program.
"""

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.base.common.ledger import stepping
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import Features, Labels, PyTree
from keras_tpu_estimator.base.common.waiting import Waiting, announce
from keras_tpu_estimator.base.mesh import transfers
from keras_tpu_estimator.base.tracing.variables import ArraysByPath
from keras_tpu_estimator.engine.device import shapes
from keras_tpu_estimator.engine.device.distributed_program import (
    DistributedProgram,
    MetricsState,
)
from keras_tpu_estimator.engine.device.executables import Executables, StoredLoop
from keras_tpu_estimator.engine.device.nan_search import Compiled, checking_nans
from keras_tpu_estimator.engine.device.run_state import StepValues, scan_with_newest
from keras_tpu_estimator.engine.device.variable_shardings import VariableShardings
from keras_tpu_estimator.engine.inputs.unbatched import batch_size, is_unbatched
from keras_tpu_estimator.engine.program.additions import CHECKS
from keras_tpu_estimator.engine.program.steps import (
    HOST_CALL,
    LOSS,
    NAMED,
    NEWEST,
    PREDICTIONS,
    STEP_LOSS,
    STEP_NUMBERS,
    Outputs,
    Step,
)
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP

# The outputs that leave the devices in PREDICT.
_PREDICTED: tuple[str, ...] = (PREDICTIONS, HOST_CALL, CHECKS)


class DeviceLoop:
    """The compiled steps of a program on the devices, one for each shape.

    Training with `debug_nans` finds the operation that makes the first NaN, and does
    not use stored executables.
    """

    def __init__(
        self,
        program: DistributedProgram,
        shardings: VariableShardings,
        debug_nans: bool = False,
        waiting: Waiting | None = None,
        executables: Executables | None = None,
    ):
        self._waiting = waiting or Waiting()
        self._program = program
        self._shardings = shardings

        def compiled(
            name: str, function: Callable[..., PyTree], **settings: Any
        ) -> Compiled:
            loop = JittedLoop(name, function, **settings)
            if executables is None:
                return loop
            shapes_of, devices_of = self._arguments_for, self.devices
            return StoredLoop(loop, shapes_of, devices_of, executables)

        self._train = (
            checking_nans(self._run)
            if debug_nans
            else compiled("train_steps", self._run, donate_argnums=0)
        )
        self._evaluate = compiled("evaluate_steps", self._run)
        self._predict = compiled("predict_step", self._run_one)
        self._predict_some = JittedLoop("predict_steps", self._run_some)
        self._jitted: dict[Step, Callable[..., PyTree]] = {}
        self._result_bytes: dict[Step, int] = {}
        # The sizes of the first batch of each mode.
        self._usual_sizes: dict[str, int] = {}

    def put(
        self,
        mode: str,
        features: Features,
        labels: Labels,
        is_part: bool = False,
    ) -> PyTree:
        """Copies stacked steps, split over the cores, as `batches` of `run`.

        Args:
            features: Pytree of arrays of shape `[steps, batch, ...]`, which must
                not change afterwards.
            is_part: Whether the batches are only this process's part.
        """
        layout, cores = (
            self._program.layout(mode),
            self._program.layout(mode).cores,
        )
        if cores.mesh is None and (
            # A compiled function copies few steps faster by itself.
            mode != ModeKeys.TRAIN
            # On a CPU it reads them in place.
            or cores.platform == "cpu"
        ):
            return features, labels
        if is_part:
            return transfers.put_parts(cores, (features, labels), axis=1)
        size = batch_size((features, labels), axis=1)
        sharding = layout.sharding(size, axis=1)
        return transfers.put_whole(cores, (features, labels), sharding)

    def distributed(self, mode: str, parts: PyTree, sizes: Sequence[int]) -> PyTree:
        """Distributes a batch of unequal parts evenly over the cores.

        All hosts must call this between the same device programs.

        Args:
            parts: The result of `put` for parts that are padded to one size.
            sizes: The number of examples in the part of each host.
        """
        layout = self._program.layout(mode)
        cores, sharding = layout.cores, layout.sharding(sum(sizes), axis=1)
        leaves, structure = jax.tree.flatten(parts, is_unbatched)
        batched = [leaf for leaf in leaves if not is_unbatched(leaf)]
        evenly = iter(transfers.without_padding(cores, batched, sizes, 1, sharding))
        even = [
            transfers.put_whole(cores, leaf, sharding)
            if is_unbatched(leaf)
            else next(evenly)
            for leaf in leaves
        ]
        return jax.tree.unflatten(structure, even)

    def put_one(self, features: Features, is_padding: np.ndarray) -> PyTree:
        """Copies features `[batch, ...]` and a mask `[batch]` for `predict`."""
        layout = self._program.layout(ModeKeys.PREDICT)
        if layout.cores.mesh is None:
            return features, is_padding
        sharding = layout.sharding(batch_size((features, is_padding)))
        return jax.device_put((features, is_padding), sharding)

    def no_metrics(self, mode: str) -> MetricsState:
        """Returns the metrics' values before the first step, on the devices.

        With arrays on the host, JAX would compile the program twice.
        """
        cores = self._program.layout(mode).cores
        metrics: MetricsState = transfers.put_whole(
            cores, self._program.metrics_state(), cores.replicated
        )
        return metrics

    def arguments(self, step: Step, batches: PyTree) -> tuple[PyTree, ...]:
        """Returns the shapes and shardings of a compiled function's arguments.

        They are the values by path that the step assigns, the others, in TRAIN and EVAL
        the metrics and the range of steps, and the batches, which come from
        `shapes.of_steps`.
        """
        is_local = step.mode == ModeKeys.PREDICT
        shardings = (
            self._shardings.in_this_process if is_local else self._shardings
        ).by_path(step.reads)
        values = shapes.of_values(self._program.store, shardings)
        if is_local:
            return *step.split(values), batches
        replicated = self._program.layout(step.mode).cores.replicated
        metrics = shapes.of_arrays(self._program.metrics_state(), replicated)
        span = shapes.of_arrays(_span(range(0)), replicated)
        return *step.split(values), metrics, span, batches

    def devices(self, step: Step) -> tuple[jax.Device, ...]:
        """Returns the devices that run a step, in their order."""
        return self._program.layout(step.mode).cores.devices

    def trace(self, step: Step, batches: PyTree) -> jax.stages.Traced:
        """Traces the function of `run` or `predict` for the shapes of batches."""
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
        batches: PyTree,
        steps: range,
        fetch: tuple[str, ...] = (),
    ) -> tuple[ArraysByPath, list[jax.Array], StepValues, Outputs]:
        """Runs one step of TRAIN or EVAL for each of some stacked batches.

        TRAIN donates the values that the step assigns.

        Args:
            batches: The result of `put`.
            steps: The rows of the batches to use, at least one.
            fetch: Names of tensors to return from the last step.

        Returns:
            The assigned values; the metrics' values; the loss of each step in
            TRAIN, or the mean up to each step in EVAL; and the other outputs, of
            every step as `StepValues`, or of the last step.
        """
        run = self._train if step.mode == ModeKeys.TRAIN else self._evaluate
        assigned, unassigned = step.split(values)
        with stepping, self._waiting:
            changed, counted, losses, stacked, newest = run(
                assigned,
                unassigned,
                metrics,
                _span(steps),
                batches,
                step=step,
                fetch=fetch,
            )
        outputs = StepValues.from_rows(stacked, steps) | newest
        return changed, counted, StepValues(losses, steps), outputs

    def predict(
        self,
        step: Step,
        assigned: ArraysByPath,
        unassigned: ArraysByPath,
        data: PyTree,
        fetch: tuple[str, ...] = (),
    ) -> tuple[ArraysByPath, Outputs, Outputs]:
        """Predicts for the result of `put_one`; the tensors of `fetch` come last."""
        with self._waiting:
            return self._predict(assigned, unassigned, data, step=step, fetch=fetch)

    def predict_some(
        self,
        step: Step,
        assigned: ArraysByPath,
        unassigned: ArraysByPath,
        data: PyTree,
        steps: range,
        fetch: tuple[str, ...] = (),
    ) -> tuple[ArraysByPath, Outputs, Outputs]:
        """Predicts for some of the stacked batches from `put`, in one run.

        The results are those of `predict`, with the outputs stacked in the rows of
        `data`, and the other tensors of the last batch. At least one of the `steps`
        must be given.
        """
        with self._waiting:
            outputs: tuple[ArraysByPath, Outputs, Outputs]
            outputs = self._predict_some(
                assigned,
                unassigned,
                _span(steps),
                data,
                step=step,
                fetch=fetch,
            )
            return outputs

    def result_bytes(
        self, step: Step, features: Features, is_padding: np.ndarray
    ) -> int:
        """Returns the bytes of one batch's outputs, for the arguments of `put_one`."""
        if step not in self._result_bytes:
            layout = self._program.layout(ModeKeys.PREDICT)
            batch = shapes.of_steps(layout, step.mode, features, is_padding)
            assigned, unassigned, _ = self.arguments(step, batch)
            with self._waiting:
                _, outputs = jax.eval_shape(
                    self._jitted_step(step), unassigned | assigned, *batch
                )
            leaves = jax.tree.leaves(_of_prediction(outputs))
            self._result_bytes[step] = sum(
                leaf.size * leaf.dtype.itemsize for leaf in leaves
            )
        return self._result_bytes[step]

    def _jitted_step(self, step: Step) -> Callable[..., PyTree]:
        """Returns a step's function, traced only once."""
        if step not in self._jitted:
            self._jitted[step] = jax.jit(self._program.to_compile(step))
        return self._jitted[step]

    def _log_compiling(self, step: Step, size: int) -> None:
        """Logs that a step is compiled, with its size if that is unusual."""
        text = f"Compiling the steps of mode {step.mode!r}"
        usual = self._usual_sizes.setdefault(step.mode, size)
        announce(text if size == usual else f"{text} for a batch of {size}")

    def _arguments_for(self, step: Step, data: PyTree) -> tuple[PyTree, ...]:
        """Returns `arguments` for batches on the devices."""
        sharding = self._program.layout(step.mode).cores.replicated
        return self.arguments(step, shapes.of_data(data, sharding))

    def _run(
        self,
        assigned: ArraysByPath,
        unassigned: ArraysByPath,
        metrics: list[jax.Array],
        span: jax.Array,
        batches: PyTree,
        *,
        step: Step,
        fetch: tuple[str, ...],
    ) -> tuple[ArraysByPath, list[jax.Array], jax.Array, Outputs, Outputs]:
        self._log_compiling(step, batch_size(batches, axis=1))
        run_step = functools.partial(self._program.run_step, step)

        def one(state: PyTree, batch: PyTree) -> tuple[PyTree, PyTree, PyTree]:
            assigned, metrics = state
            # Both ends are constrained, so that XLA does not shard replicated
            # values between two steps.
            assigned = self._shardings.pinned(assigned)
            changed, metrics, outputs = run_step(unassigned | assigned, metrics, batch)
            mean, step_loss = outputs.pop(LOSS), outputs.pop(STEP_LOSS)
            loss = step_loss if step.mode == ModeKeys.TRAIN else mean
            newest = {name: outputs.pop(name, {}) for name in NEWEST}
            newest[NAMED] = _only(newest[NAMED], fetch)
            assigned = self._shardings.pinned(assigned | changed)
            if not step.additions.counts_once:
                outputs[STEP_NUMBERS] = assigned[GLOBAL_STEP]
            return (assigned, metrics), (loss, outputs), newest

        (assigned, metrics), (losses, stacked), newest = scan_with_newest(
            one, (assigned, metrics), batches, span
        )
        assigned = self._shardings.pinned(assigned)
        cores = self._program.layout(step.mode).cores
        # Each process reads the flags of its devices.
        checks = stacked.pop(CHECKS, {})
        stacked, newest = cores.whole_on_hosts((stacked, newest))
        return assigned, metrics, losses, stacked, newest | {CHECKS: checks}

    def _run_one(
        self,
        assigned: ArraysByPath,
        unassigned: ArraysByPath,
        data: PyTree,
        *,
        step: Step,
        fetch: tuple[str, ...],
    ) -> tuple[ArraysByPath, Outputs, Outputs]:
        self._log_compiling(step, batch_size(data))
        run_step = self._program.to_compile(step)
        changed, outputs = run_step(unassigned | assigned, *data)
        named = _only(outputs.pop(NAMED, {}), fetch)
        return assigned | changed, _of_prediction(outputs), named

    def _run_some(
        self,
        assigned: ArraysByPath,
        unassigned: ArraysByPath,
        span: jax.Array,
        batches: PyTree,
        *,
        step: Step,
        fetch: tuple[str, ...],
    ) -> tuple[ArraysByPath, Outputs, Outputs]:
        self._log_compiling(step, batch_size(batches, axis=1))
        run_step, placement = self._jitted_step(step), self._shardings.in_this_process

        def one(assigned: PyTree, batch: PyTree) -> tuple[PyTree, PyTree, PyTree]:
            assigned = placement.pinned(assigned)
            changed, outputs = run_step(unassigned | assigned, *batch)
            named = _only(outputs.get(NAMED, {}), fetch)
            assigned = placement.pinned(assigned | changed)
            return assigned, _of_prediction(outputs), named

        return scan_with_newest(one, assigned, batches, span)


def _span(steps: range) -> np.ndarray:
    """Returns the first step and the one after the last, as an array."""
    return np.array([steps.start, steps.stop], "int32")


def _of_prediction(outputs: Outputs) -> Outputs:
    """Returns the outputs that leave the devices in PREDICT."""
    return {name: outputs[name] for name in _PREDICTED if name in outputs}


def _only(named: Outputs, fetch: tuple[str, ...]) -> Outputs:
    return {name: named[name] for name in fetch}


class JittedLoop:
    """A compiled function of arrays, a step and the names of tensors to fetch.

    JAX stores static arguments in caches that all compiled functions share, until the
    process ends. A step holds the graph of its `model_fn`, so that JAX must reference
    it only weakly. Profiles show the `name`.
    """

    def __init__(self, name: str, function: Callable[..., PyTree], **settings: Any):
        @functools.wraps(function)
        def run(
            *args: PyTree, step: weakref.ref[Step], fetch: tuple[str, ...]
        ) -> PyTree:
            return function(*args, step=step(), fetch=fetch)

        run.__name__ = name
        self._function = jax.jit(run, static_argnames=("step", "fetch"), **settings)

    def __call__(self, *args: PyTree, step: Step, fetch: tuple[str, ...]) -> Any:
        """Runs the function."""
        return self._function(*args, step=weakref.ref(step), fetch=fetch)

    def trace(
        self, *args: PyTree, step: Step, fetch: tuple[str, ...]
    ) -> jax.stages.Traced:
        """Traces the function for arguments of these shapes."""
        return self._function.trace(*args, step=weakref.ref(step), fetch=fetch)
