"""A TF1 graph as one step for all devices."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator.api.hooks.session_run_hook import Hook
from keras_tpu_estimator.api.model_fn.outside_compilation import Call
from keras_tpu_estimator.api.model_fn.spec_checks import HostFunction
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import Features, Labels, PyTree
from keras_tpu_estimator.base.tracing.variables import AnyArraysByPath, ArraysByPath
from keras_tpu_estimator.base.upstream import keras_random
from keras_tpu_estimator.engine.program.additions import CHECKS
from keras_tpu_estimator.engine.program.steps import (
    EVAL_METRICS,
    HOST_CALL,
    LOSS,
    NAMED,
    PREDICTIONS,
    REPORTS,
    SUMMARIES,
    Outputs,
    Step,
    StepInput,
    check_concatenable,
    metrics_name,
    metrics_of,
    outputs_of,
    same_on_all,
    splits,
)
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP, VariableStore
from keras_tpu_estimator.tf1.graph.model_graph import ModelGraph
from keras_tpu_estimator.tf1.graph.scaffolds import as_ours, objects_of, retention_of
from keras_tpu_estimator.tf1.graph.variables import (
    BATCH_RUNS,
    REPEATS,
    SEED,
    collections_of,
    enter,
)
from keras_tpu_estimator.tf1.host.arguments import only_tensors
from keras_tpu_estimator.tf1.host.hook_fetches import FetchedGraph
from keras_tpu_estimator.tf1.host.host_graph import growing_loops
from keras_tpu_estimator.tf1.host.host_session import CloseHostCall, HostCall
from keras_tpu_estimator.tf1.host.metric_session import GraphMetrics, MetricFn
from keras_tpu_estimator.tf1.host.postprocessing import (
    called_with_host_tensors,
    on_host,
)
from keras_tpu_estimator.tf1.host.step_writers import remove_writers
from keras_tpu_estimator.tf1.host.summaries import Recorded, recorded
from keras_tpu_estimator.tf1.lift import primitive
from keras_tpu_estimator.tf1.lift.graph_additions import GraphAdditions
from keras_tpu_estimator.tf1.lift.graph_outputs import (
    Compiled,
    GraphOutputs,
    check_replicated,
    check_trained,
    warn_of_writes,
)
from keras_tpu_estimator.tf1.lift.refusals import check_platform
from keras_tpu_estimator.tf1.lift.truncation import truncation_flags
from keras_tpu_estimator.tf1.spec import EstimatorSpec

# An odd number, so that its multiples are distinct modulo 2**32.
_SEED_STRIDE = 0x9E3779B1
_REPEATS_STRIDE = 0x85EBCA6B
_BATCH_RUNS_STRIDE = 0xC2B2AE35


class GraphStep:
    """A step that lifts a TF1 graph to a StableHLO module, and runs it in JAX.

    `bits` is the generator of random bits, as in `RunConfig`.

    Attributes:
        local: The names of the local variables that the step may have.
        on_host: The names of the variables that it leaves on the host.
        counts_once: Whether each TRAIN step adds one to the global step.
    """

    def __init__(
        self,
        model: ModelGraph,
        mode: str,
        example: StepInput,
        metrics: GraphMetrics,
        bits: str | None,
    ):
        self._bits = bits
        self._by_device = keras_random.are_by_device(bits)
        self._model = model
        self._mode, self._example = mode, example.without_data()
        self._metric_fn: HostFunction | None = None
        self._host_call: HostFunction | None = None
        self._own_host_call: HostCall | None = None
        self._calls_on_host: list[Call | None] = []
        self._hooks: tuple[Hook, ...] = model.spec.hooks
        training = mode == ModeKeys.TRAIN
        targets = self._targets() if training else []
        with model.graph.as_default():
            tensors = self._tensors(metrics)
            self._write_files(tensors, targets)
        flat, self._structure = jax.tree.flatten(tensors)
        self._count = len(flat)
        self._outputs = GraphOutputs(
            model,
            flat,
            targets,
            self._summaries(),
            example.is_split,
            counts=training,
        )
        self._check()
        self.local = self._outputs.local
        self.on_host = self._outputs.on_host
        self.counts_once = not training or self._outputs.pruned.counts_once()
        if training and self.counts_once and self._own_host_call is not None:
            self._own_host_call.steps_counted = 1
        self._split: dict[str, Any] = dict(splits(tensors, example.is_split))

    def of_all_cores(self) -> Step:
        """Returns the step that runs on all devices."""
        model = self._model
        changes = {*self._outputs.pruned.effects.last_writes, *self.local}
        counters = {*self._counters()}
        on_devices = {*model.variables, *self.local} - self.on_host
        changes = {*changes, *counters} - self.on_host
        loop_variables = {GLOBAL_STEP, SEED, *counters}
        return Step(
            mode=self._mode,
            function=self._run,
            reads=(*loop_variables, *on_devices),
            assigned=tuple(changes),
            metric_fn=self._metric_fn,
            host_call=self._host_call,
            hooks=self._hooks,
            scaffold=as_ours(
                model.scaffold,
                self._mode,
                model.graph,
                model.variables,
                {name: model.local[name] for name in self.local},
            ),
            named=self._outputs,
            records=self._outputs.records,
            additions=GraphAdditions(
                FetchedGraph(
                    model,
                    self._example.cores.topology.num_replicas,
                    self._step_of_operations,
                    self._outputs.used,
                ),
                self.counts_once,
                retention_of(model.scaffold),
                objects_of(
                    model.scaffold, model.graph, {GLOBAL_STEP, *model.variables}
                ),
                collections_of(model),
                self._dtypes,
                self._outputs.pruned.line_of,
            ),
        )

    def _run(
        self, values: AnyArraysByPath, features: Features, labels: Labels
    ) -> tuple[ArraysByPath, Outputs]:
        """Compiles when traced, with all that has been requested by then."""
        compiled = self._outputs.compiled()
        cores, split = self._example.cores, self._example.is_split
        check_platform(compiled.lifted.module, cores.platform)
        last = {
            SUMMARIES: [summary.split(split) for summary in compiled.summaries],
            NAMED: {
                name: split and tensor.shape.rank != 0
                for name, tensor in zip(compiled.names, compiled.tensors, strict=True)
            },
            REPORTS: {},
            CHECKS: split,
        }
        run = cores.per_core(
            functools.partial(self._per_core, compiled),
            split=(False, split, split),
            outputs_split=(False, self._split | last),
        )
        result: tuple[ArraysByPath, Outputs] = run(values, features, labels)
        return result

    def _per_core(
        self,
        compiled: Compiled,
        values: ArraysByPath,
        features: Features,
        labels: Labels,
    ) -> tuple[ArraysByPath, Outputs]:
        lifted, cores = compiled.lifted, self._example.cores
        features, labels = self._example.sharing()(features, labels)
        if self._mode == ModeKeys.PREDICT:
            labels = None
        if self._example.arrange is not None:
            features, labels = self._example.arrange(features, labels)
        core = cores.core_index().astype("uint32") * jnp.uint32(_SEED_STRIDE)
        key = jnp.stack([values[SEED] + core, self._draw(values)])
        args = jax.tree.leaves((features, labels))
        args += [values[name] for name in lifted.reads]
        arrays, cut = primitive.run(lifted, key, args, cores.axes, self._by_device)
        results = iter(arrays)
        first = [next(results) for _ in range(self._count)]
        outputs: Outputs = jax.tree.unflatten(self._structure, first)
        if LOSS in outputs:
            outputs[LOSS] = cores.mean(outputs[LOSS])
        outputs[SUMMARIES] = [
            summary.collected(next(results)).of_cores(cores.mean)
            for summary in compiled.summaries
        ]
        named = {name: next(results) for name in compiled.names}
        outputs[NAMED] = {
            name: tensor if tensor.ndim else same_on_all(cores, tensor)
            for name, tensor in named.items()
        }
        outputs[REPORTS] = {}
        outputs[CHECKS] = truncation_flags(
            dict(zip(lifted.wide.values(), cut, strict=True))
        )
        changed = dict(zip(lifted.changes, results, strict=True))
        for name in compiled.varying:
            changed[name] = same_on_all(cores, changed[name])
        return changed | self._counted(values, changed), outputs

    def _targets(self) -> list[Any]:
        """Returns the operations of TRAIN, besides the outputs."""
        return [self._model.spec.train_op]

    def _check(self) -> None:
        """Checks the step, or warns about it."""
        if self._mode == ModeKeys.TRAIN:
            check_trained(self._model, self._outputs.pruned, self._example)
        else:
            warn_of_writes(self._model, self._outputs.pruned, self._mode)

    def _counters(self) -> tuple[str, ...]:
        """Returns the variables that this class assigns, besides the graph's."""
        return () if self.counts_once else (REPEATS,)

    def _draw(self, values: AnyArraysByPath) -> Any:
        """Returns the number that random operations depend on."""
        step: Any = values[GLOBAL_STEP].astype("uint32")
        if not self.counts_once:
            step = step + values[REPEATS] * jnp.uint32(_REPEATS_STRIDE)
        return step

    def _counted(self, values: AnyArraysByPath, changed: ArraysByPath) -> ArraysByPath:
        """Returns the counters after a step that has changed variables."""
        if self.counts_once:
            return {}
        stays = changed[GLOBAL_STEP] == values[GLOBAL_STEP]
        return {REPEATS: jnp.where(stays, values[REPEATS] + 1, jnp.uint32(0))}

    def _step_of_operations(
        self, model: ModelGraph, elements: Sequence[Any], store: VariableStore
    ) -> Step:
        """Returns a step of operations that a hook runs. `model` has its variables."""
        step = HookedStep(model, elements, self._example, self._bits)
        enter(store, model, step.local, step.on_host)
        return step.of_all_cores()

    def _summaries(self) -> list[Recorded]:
        """Returns the summaries of training."""
        model = self._model
        if self._mode != ModeKeys.TRAIN:
            return []
        return recorded(model.graph, model.scaffold.summary_op)

    def _tensors(self, metrics: GraphMetrics) -> dict[str, PyTree]:
        """Returns the tensors of the graph that leave the devices."""
        spec, mode = self._model.spec, self._mode
        tensors = outputs_of(spec, mode, lambda f: _fed(only_tensors(f)))
        self._dtypes = jax.tree.map(_dtype, tensors.get(PREDICTIONS))
        metrics_fn = metrics_of(spec, mode)
        if metrics_fn is not None:
            self._metric_fn = HostFunction(
                *MetricFn.from_host_function(only_tensors(metrics_fn))
            )
        if isinstance(spec, EstimatorSpec) and mode == ModeKeys.EVAL:
            if spec.eval_metric_ops:
                fed = metrics.enter(self._model.graph, spec.eval_metric_ops)
                tensors[EVAL_METRICS] = fed
                self._metric_fn = HostFunction(metrics, fed)
        if spec.host_call is not None:
            graph_call, dtypes = HostCall.from_host_function(
                only_tensors(spec.host_call)
            )
            self._own_host_call = graph_call
            self._host_call = HostFunction(graph_call, dtypes)
            self._hooks = (*self._hooks, CloseHostCall(graph_call))
        graph, loops = self._model.graph, list[str]()
        if mode != ModeKeys.TRAIN:
            loops = growing_loops(graph, jax.tree.leaves(tensors), mode)
        rows = self._example.additional["batch_size"]
        for name, tensors_of_name in tensors.items():
            if name != "loss":
                tensors[name], call = on_host(graph, tensors_of_name, rows, loops)
                self._calls_on_host.append(call)
        self._metric_fn = _fed_on_host(self._metric_fn, tensors.get(metrics_name(mode)))
        self._host_call = _fed_on_host(self._host_call, tensors.get(HOST_CALL))
        check_concatenable(tensors, self._example, lambda tensor: tensor.shape.rank)
        return tensors

    def _write_files(self, tensors: dict[str, PyTree], targets: Sequence[Any]) -> None:
        """Makes the host write the files that the graph would write."""
        fetches = [*jax.tree.leaves(tensors), *targets]
        removed = remove_writers(self._model.graph, fetches)
        if removed is None:
            return
        writer = HostFunction(*removed)
        self._hooks = (*self._hooks, CloseHostCall(removed[0]))
        if self._host_call is None:
            self._host_call, tensors[HOST_CALL] = writer, _fed(writer)
        else:
            self._host_call = _calling_both(self._host_call, writer)
            tensors[HOST_CALL] = [tensors[HOST_CALL], _fed(writer)]


class HookedStep(GraphStep):
    """The step of operations that a hook runs on a separate batch.

    Its loss is zero. Random operations draw other numbers than those of the main step,
    and other ones in each run.
    """

    def __init__(
        self,
        model: ModelGraph,
        elements: Sequence[Any],
        example: StepInput,
        bits: str | None,
    ):
        import tensorflow as tf

        self._elements = [*elements]
        with model.graph.as_default(), model.graph.control_dependencies(None):
            # Host functions belong to the main step.
            spec = dataclasses.replace(
                model.spec, loss=tf.zeros([]), host_call=None, train_metrics=None
            )
        model = dataclasses.replace(model, spec=spec)
        super().__init__(model, ModeKeys.TRAIN, example, GraphMetrics(), bits)
        self.counts_once = False

    def _targets(self) -> list[Any]:
        return self._elements

    def _summaries(self) -> list[Recorded]:
        return []

    def _check(self) -> None:
        check_replicated(self._model, self._outputs.pruned, self._example)

    def _counters(self) -> tuple[str, ...]:
        # The loop returns the global step after each step.
        return (BATCH_RUNS, GLOBAL_STEP)

    def _draw(self, values: AnyArraysByPath) -> Any:
        runs = self._runs(values) * jnp.uint32(_BATCH_RUNS_STRIDE)
        return values[GLOBAL_STEP].astype("uint32") + runs

    def _counted(self, values: AnyArraysByPath, changed: ArraysByPath) -> ArraysByPath:
        del changed
        step = values[GLOBAL_STEP].astype("uint32")
        return {BATCH_RUNS: jnp.stack([step, self._runs(values)])}

    def _runs(self, values: AnyArraysByPath) -> jax.Array:
        """Returns the number of this run since the global step changed, from 1."""
        step, runs = values[BATCH_RUNS]
        is_first = step != values[GLOBAL_STEP].astype("uint32")
        return jnp.where(is_first, jnp.uint32(0), runs) + 1


def _dtype(tensor: Any) -> np.dtype:
    return np.dtype(tensor.dtype.as_numpy_dtype)


def _calling_both(first: HostFunction, second: HostFunction) -> HostFunction:
    """Returns a host function that calls two others with their own tensors."""

    def call(of_first: PyTree, of_second: PyTree) -> None:
        first.call(of_first)
        second.call(of_second)

    return HostFunction(call, [first.tensors, second.tensors])


def _fed_on_host(host: HostFunction | None, tensors: PyTree) -> HostFunction | None:
    """A function that the host gives what no device can compute."""
    if host is None:
        return None
    return HostFunction(called_with_host_tensors(host.function, tensors), host.tensors)


def _fed(host: HostFunction) -> PyTree:
    """Returns the tensors of a host function, with at least one to count steps."""
    import tensorflow as tf

    return host.tensors or [tf.zeros([1], tf.int32)]
