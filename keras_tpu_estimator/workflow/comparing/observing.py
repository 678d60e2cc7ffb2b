"""A front end that observes another: its input, its gradients and its forward pass."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import Features, Labels
from keras_tpu_estimator.base.tracing.jaxprs import GRADIENT_MARK
from keras_tpu_estimator.engine.inputs import batch as user_batches
from keras_tpu_estimator.engine.inputs.request import source_of_call
from keras_tpu_estimator.engine.program.additions import StepAdditions
from keras_tpu_estimator.engine.program.steps import (
    HOST_CALL,
    NAMED,
    REPORTS,
    SUMMARIES,
    Outputs,
    Program,
    Step,
    StepInput,
)
from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.workflow.comparing import randomness
from keras_tpu_estimator.workflow.comparing.dataflow import (
    STATISTICS,
    Dataflow,
    ForwardPass,
    Walk,
    argument,
    statistics_of,
)
from keras_tpu_estimator.workflow.comparing.graph_flow import GraphFlow, computable
from keras_tpu_estimator.workflow.comparing.records import Batch

# The changed values and outputs of a step, its forward pass, and observed tensors.
Observed: TypeAlias = tuple[Any, Outputs, ForwardPass, dict[str, jax.Array]]
# Names of the observed tensors, which hooks fetch.
FLOW = "compare/statistics"
GRADIENT = "compare/gradient/"
RATE = "compare/rate/"
HOST = "compare/host/"


class GraphObservation:
    """The loss and the gradients in the TensorFlow graph that `model_fn` builds.

    Attributes:
        loss: The loss of the spec.
        gradients: The names of gradients of the loss, by the name of the variable.
    """

    def __init__(self) -> None:
        self.loss: Any = None
        self.gradients: dict[str, str] = {}
        self._applied: set[str] = set()

    def note_gradients(
        self,
        variables: Sequence[Any],
        gradients: Sequence[Any],
        is_applied: bool = False,
    ) -> None:
        """Notes the gradients that `tf.gradients` returns, or that are applied.

        The outermost optimizer's count, before it adds those of all cores.
        """
        for variable, gradient in zip(variables, gradients, strict=True):
            # Those of looked-up rows have another form.
            if gradient is None or not hasattr(gradient, "op"):
                continue
            name = variable.op.name
            if name in self._applied:
                continue
            self.gradients[name] = gradient.name
            if is_applied:
                self._applied.add(name)

    def flow(self, step: Step) -> GraphFlow:
        """Returns the forward pass, whose tensors then leave the devices."""
        flow = GraphFlow.from_loss(self.loss)
        request = step.named.intersection
        possible = computable([*flow.names, *self.gradients.values()], request)
        self.gradients = {v: n for v, n in self.gradients.items() if n in possible}
        return flow.only(possible)


class Observations:
    """The observations of one program in all calls.

    Args:
        replayed: The batches that replace those of `input_fn`, or `None`.

    Attributes:
        batches: The batches since `restart`.
        names: The names of observed tensors in training.
        dropout: The rates of the dropouts that `model_fn` has called.
        graph: The observation of the last graph, or `None` without one.
        is_repeated: Whether the input is a single batch, which is repeated.
    """

    def __init__(self, replayed: Sequence[Batch] | None = None):
        self.replayed = replayed
        self.batches: list[Batch] = []
        self.names: tuple[str, ...] = ()
        self.dropout: dict[float | None, None] = {}
        self.graph: GraphObservation | None = None
        self.is_repeated = False
        self._forward = ForwardPass()

    def restart(self, replayed: Sequence[Batch] | None) -> None:
        """Begins another call, with other batches."""
        self.replayed = replayed
        self.batches = []
        self.is_repeated = False

    def batches_of(self, steps: int) -> list[Batch]:
        """Returns the batches of some steps; arrays are the batch of each step."""
        return self.batches * steps if self.is_repeated else self.batches[:steps]

    def note(self, features: Features, labels: Labels) -> None:
        """Notes a batch of the user's input."""
        self.batches.append(Batch(*jax.tree.map(_copied, (features, labels))))

    def dataflow(self, statistics: np.ndarray) -> Dataflow:
        """Returns the forward pass with its statistics."""
        return Dataflow(self._forward, statistics)

    def settle(self, forward: ForwardPass, names: Sequence[str]) -> None:
        """Notes what a trace of training contains."""
        self._forward = forward
        self.names = tuple(names)


def _copied(leaf: Any) -> Any:
    """Returns a copy of an array; sparse tensors and the like do not change."""
    return np.array(leaf) if hasattr(leaf, "__array__") else leaf


class ObservingFrontEnd:
    """The front end of a `model_fn`, with observations."""

    def __init__(self, front_end: Any, observations: Observations):
        self._front_end = front_end
        self._observations = observations

    def __getattr__(self, name: str) -> Any:
        return getattr(self._front_end, name)

    def make_program(
        self, call_model_fn: Any, *arguments: Any, **options: Any
    ) -> Program:
        """Returns the program of a `model_fn` without dropout."""
        quiet = _Quiet(call_model_fn, self._observations)
        program = self._front_end.make_program(quiet, *arguments, **options)
        observe = vars(program)
        observe["step"] = _observed(program, self._observations)
        return program

    def source_of(
        self, call: Callable[[], Any], number: int, *arguments: Any, **options: Any
    ) -> Any:
        """Returns a source of the replayed batches, or of the user's."""
        if number:
            raise ValueError(
                "Programs that are compared must call `input_fn` once for each step. "
                "Received one that calls it for each host or core. Use PER_HOST_V1 in "
                "TPUConfig.per_host_input_for_training."
            )
        replayed = self._observations.replayed
        if replayed is None:
            source = self._front_end.source_of(call, number, *arguments, **options)
        else:
            pairs = [(batch.features, batch.labels) for batch in replayed]
            source = source_of_call(lambda: iter(pairs), number)
        self._observations.is_repeated = source.is_single
        # `pair_of` notes single batches.
        vars(source)["stacked_for"] = lambda *request: 0
        return source

    def pair_of(self, value: Any) -> tuple[Features, Labels]:
        """Returns the features and the labels of a batch, and notes them."""
        is_replayed = self._observations.replayed is not None
        pair_of = user_batches.pair_of if is_replayed else self._front_end.pair_of
        features, labels = pair_of(value)
        self._observations.note(features, labels)
        return features, labels


class _Quiet:
    """A `model_fn` whose dropout passes on its input."""

    def __init__(self, call_model_fn: Any, observations: Observations):
        self._call_model_fn = call_model_fn
        self._observations = observations

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call_model_fn, name)

    def __call__(self, *arguments: Any) -> Any:
        graph = GraphObservation()
        with (
            randomness.without_dropout(self._observations.dropout),
            randomness.gradients_noted(graph.note_gradients),
        ):
            spec = self._call_model_fn(*arguments)
        graph.loss = spec.loss
        self._observations.graph = graph if hasattr(spec.loss, "graph") else None
        return spec


def _observed(
    program: Program, observations: Observations
) -> Callable[[str, StepInput], Step]:
    """Returns a function that makes steps with observations."""
    step_of, store = program.step, program.store
    steps: dict[int, tuple[Step, Step]] = {}

    def step(mode: str, example: StepInput) -> Step:
        plain = step_of(mode, example)
        if id(plain) not in steps:
            # The user's functions on the host may write files.
            observed = dataclasses.replace(
                plain, hooks=(), host_call=None, additions=_of_batches(plain.additions)
            )
            if mode == ModeKeys.TRAIN:
                count = example.cores.topology.num_replicas if example.is_split else 1
                observed = _with_observations(observed, observations, count)
                # The hooks ask for the observations before the step runs.
                values = {path: _like(store, path) for path in plain.reads}
                batch = example.features, example.labels
                jax.eval_shape(observed.function, values, *batch)
            steps[id(plain)] = plain, observed
        return steps[id(plain)][1]

    return step


def _of_batches(additions: StepAdditions) -> StepAdditions:
    """Returns additions with which `evaluate` returns the mean over batches.

    Old programs return that. Without this, a port would differ from its old program if
    the last batch is shorter.
    """
    of_batches = copy.copy(additions)
    vars(of_batches)["weighs_examples"] = False
    return of_batches


def _like(store: VariableStore, path: str) -> jax.ShapeDtypeStruct:
    shape = tuple(store.variables[path].shape)
    return jax.ShapeDtypeStruct(shape, store.device_dtype(path))


def _with_observations(step: Step, observations: Observations, devices: int) -> Step:
    """Returns a step that also outputs its observations."""
    graph = observations.graph
    look = _walked if graph is None else _in_graph(graph, graph.flow(step), devices)

    def function(values: Any, features: Features, labels: Labels) -> Any:
        changed, outputs, forward, observed = look(step, values, features, labels)
        observed |= {HOST + name: value for name, value in _to_the_host(outputs)}
        observations.settle(forward, [*observed])
        named = {**outputs[NAMED], **observed}
        return changed, {**outputs, NAMED: named}

    return dataclasses.replace(step, function=function, named=_Named(step.named))


def _to_the_host(outputs: Outputs) -> Iterator[tuple[str, jax.Array]]:
    """Yields the tensors that `host_call` and summaries receive, by name."""
    for path, tensor in jax.tree_util.tree_leaves_with_path(outputs.get(HOST_CALL)):
        yield f"host_call{jax.tree_util.keystr(path)}", tensor
    for collected in outputs.get(SUMMARIES, ()):
        tensors = jax.tree_util.tree_leaves_with_path(collected.tensors)
        for path, tensor in tensors:
            key = jax.tree_util.keystr(path)
            yield f"summary {collected.summary.tag}{key}", tensor


class _Named:
    """The names of a step and of its observations."""

    def __init__(self, names: Any):
        self._names = names

    def intersection(self, names: Any) -> set[str]:
        """Returns the given names that are among these."""
        observed = {n for n in names if n.startswith("compare/")}
        named = [n for n in names if n not in observed]
        return {*self._names.intersection(named), *observed}


def _walked(step: Step, values: Any, features: Features, labels: Labels) -> Observed:
    """Runs a step in a trace, and returns its results and its observations."""
    traced, shapes = jax.make_jaxpr(step.function, return_shape=True)(
        values, features, labels
    )
    paths = sorted(values)
    inputs = [argument(values[path], path) for path in paths]
    inputs += [argument(leaf) for leaf in jax.tree.leaves((features, labels))]
    walk = Walk(GRADIENT_MARK)
    results = walk.run(traced, inputs)
    tree = jax.tree.structure(shapes)
    changed, outputs = jax.tree.unflatten(tree, [r.tensor for r in results])
    loss = jax.tree.unflatten(tree, results)[1]["loss"]
    forward, statistics = walk.behind(loss)
    observed = {GRADIENT + path: g for path, g in walk.marked.items()}
    rates = outputs.get(REPORTS, {})
    observed |= {RATE + name: rate for name, rate in rates.items()}
    observed[FLOW] = statistics
    return changed, outputs, forward, observed


def _in_graph(
    graph: GraphObservation, flow: GraphFlow, devices: int
) -> Callable[..., Observed]:
    """Returns a function like `_walked` for the step of a graph."""

    def look(step: Step, values: Any, features: Features, labels: Labels) -> Observed:
        changed, outputs = step.function(values, features, labels)
        named = outputs[NAMED]
        operations = flow.sized({name: named[name].shape for name in flow.names})
        forward = ForwardPass(operations, flow.random, devices)
        observed = {
            GRADIENT + variable: _summed(named[name], devices)
            for variable, name in graph.gradients.items()
        }
        statistics = [statistics_of(named[name]) for name in flow.names]
        observed[FLOW] = jnp.stack(statistics or [jnp.zeros(STATISTICS)])[
            : len(operations)
        ]
        return changed, outputs, forward, observed

    return look


def _summed(gradient: jax.Array, devices: int) -> jax.Array:
    """Returns the sum of the gradients of several devices, as optimizers compute it.

    Scalars are the mean over the devices, and other gradients follow each other.
    """
    if devices == 1:
        return gradient
    if not gradient.ndim:
        return gradient * devices
    return jnp.sum(jnp.reshape(gradient, (devices, -1, *gradient.shape[1:])), axis=0)
