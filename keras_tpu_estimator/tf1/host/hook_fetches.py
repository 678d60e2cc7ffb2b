"""The fetches of hooks from a TF1 graph, and their operations between steps.

Most tensors leave the devices under their names. Operations on strings, such as
summaries, run on the host, as do values that depend only on variables. Operations that
assign variables run on the host between two runs of the device loop. For example, a
hook restores averages before an evaluation. The next step starts with the assigned
values.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.engine.program.steps import Step
from keras_tpu_estimator.engine.program.store import (
    EVAL_STEP,
    VariableStore,
)
from keras_tpu_estimator.tf1.graph.building import as_in_tf2
from keras_tpu_estimator.tf1.graph.definitions import definition_of, reachable
from keras_tpu_estimator.tf1.graph.model_graph import ModelGraph
from keras_tpu_estimator.tf1.graph.source_lines import line_of
from keras_tpu_estimator.tf1.graph.variables import enter, enter_batch_runs
from keras_tpu_estimator.tf1.host.graph_cut import cut
from keras_tpu_estimator.tf1.host.graph_session import BatchRun, Request
from keras_tpu_estimator.tf1.host.hook_components import (
    in_components,
    joined,
    refuse_components,
)
from keras_tpu_estimator.tf1.host.host_runs import (
    HostRun,
    element_of,
    host_run,
    of_variables,
)
from keras_tpu_estimator.tf1.lift.refusals import reason_against
from keras_tpu_estimator.tf1.spec import Spec

ArraysByPath = Mapping[str, Any]


class _Part(NamedTuple):
    """One fetched value: the names it needs, and a function of their values."""

    names: Sequence[str]
    make: Callable[[ArraysByPath], Any]


def _remembered(
    find: Callable[["FetchedGraph", Any], _Part | None],
) -> Callable[["FetchedGraph", Any], _Part | None]:
    """Caches the result of a search for each tensor of a graph."""

    @functools.wraps(find)
    def remembered(graph: "FetchedGraph", tensor: Any) -> _Part | None:
        key = (find, tensor.name)
        if key not in graph.parts:
            graph.parts[key] = find(graph, tensor)
        return graph.parts[key]

    return remembered


class FetchedGraph:
    """A graph, as the hooks of a call may use it.

    Attributes:
        fetched: The fetches of each run without hooks.
        parts: Cached results about its tensors.

    `step_of` returns the step of some elements of the graph, and enters its variables.
    The main step uses the variables `used`.
    """

    def __init__(
        self,
        model: ModelGraph,
        num_replicas: int,
        step_of: Callable[[ModelGraph, Sequence[Any], VariableStore], Step],
        used: Collection[str],
    ):
        self._step_of = step_of
        self._steps: dict[tuple[str, ...], Step] = {}
        self.graph = model.graph
        self._num_replicas = num_replicas
        self.fetched = _fetched(model.spec)
        self._model = _with_call_variables(model)
        self.parts: dict[Any, _Part | None] = {}
        self._assigns: dict[Any, bool] = {}
        self._known_to_train: dict[tuple[str, ...], bool] = {}
        self._used = frozenset(used)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Makes the graph the default graph, as while it was built."""
        import tensorflow as tf

        v1 = tf.compat.v1
        with as_in_tf2(), self.graph.as_default():
            # Variables of a hook are reused in later calls of the estimator.
            with v1.variable_scope(v1.get_variable_scope(), reuse=v1.AUTO_REUSE):
                yield

    def request(
        self, fetches: Any, requested: Collection[str] | None = None
    ) -> Request:
        """Returns the request for some tensors. See `HookedGraph`."""
        leaves, structure = jax.tree.flatten(in_components(fetches))
        if self._num_replicas > 1:
            refuse_components(fetches, leaves)
        parts = [self._part(leaf, requested) for leaf in leaves]

        def results(values: ArraysByPath, ran: FetchedGraph | None) -> Any:
            current = parts
            if ran is not None and ran is not self:
                pairs = zip(leaves, parts, strict=True)
                current = [ran._counterpart(leaf) or part for leaf, part in pairs]
            arrays = [part.make(values) for part in current]
            return joined(jax.tree.unflatten(structure, arrays))

        return Request({n for part in parts for n in part.names}, results)

    def enter_new(self, store: VariableStore) -> bool:
        """Enters variables that hooks have made. See `HookedGraph`."""
        model = self._model
        new, local = model.made_since()
        if not new and not local:
            return False
        self._model = dataclasses.replace(
            model,
            variables={**model.variables, **new, **local},
            local={**model.local, **local},
        )
        self.parts.clear()
        self._assigns.clear()
        self._steps.clear()
        self._known_to_train.clear()
        enter(store, self._model, local, {*new, *local, *store.on_host})
        return True

    def host_run(
        self, fetches: Any, feed_dict: Mapping[Any, Any] | None
    ) -> HostRun | None:
        """Returns a run on the host only. See `HookedGraph`."""
        run = host_run(self._model, in_components(fetches), feed_dict)
        return run and dataclasses.replace(run, fetches=fetches)

    def trains(self, values: Any) -> bool:
        """Returns whether values contain train operations. See `HookedGraph`."""
        return any(self._trains([e]) for e in self._elements_in(values))

    def batch_run(self, fetches: Any, requested: Collection[str]) -> BatchRun | None:
        """Returns a run on a batch. See `HookedGraph`."""
        leaves, structure = jax.tree.flatten(in_components(fetches))
        elements = [self._element_on_batch(leaf) for leaf in leaves]
        if any(element is None for element in elements) or not self._trains(elements):
            return None
        names = [element.name for element in elements]
        if {name.removesuffix(":0") for name in names} <= {*requested}:
            return None
        variables = {n: self._part(n, ()) for n in names if n in self._model.variables}
        operations = tuple(dict.fromkeys(n for n in names if n not in variables))

        def result(element: Any, values: ArraysByPath) -> Any:
            if element.name in variables:
                return variables[element.name].make(values)
            if element.name not in values:
                return None
            dtype = element.dtype.as_numpy_dtype
            return np.asarray(values[element.name], dtype)[()]

        def results(values: ArraysByPath) -> Any:
            arrays = [result(element, values) for element in elements]
            return joined(jax.tree.unflatten(structure, arrays))

        return BatchRun(operations, [*variables], results)

    def _element_on_batch(self, leaf: Any) -> Any:
        """Returns a fetched element, and the new value for an assignment."""
        element = element_of(self.graph, leaf)
        is_assigned = hasattr(leaf, "handle") and element.type != "VarHandleOp"
        return self.graph.as_graph_element(leaf) if is_assigned else element

    def batch_step(self, operations: Sequence[str], store: VariableStore) -> Step:
        """Returns the step of a `BatchRun`. See `HookedGraph`."""
        key = tuple(operations)
        if key not in self._steps:
            enter_batch_runs(store)
            try:
                elements = [self.graph.as_graph_element(name) for name in key]
            except KeyError as error:
                raise ValueError(
                    "A hook must run operations that model_fn makes, because for "
                    "batches of another size model_fn is called again, without the "
                    f"operations of `begin`. Received: {', '.join(key)}, not all of "
                    "which exist. Make them in model_fn, or drop a last, smaller batch."
                ) from error
            self._steps[key] = self._step_of(self._model, elements, store)
        return self._steps[key]

    def _elements_in(self, values: Any) -> Iterator[Any]:
        """Yields the operations and tensors of this graph in nested objects."""
        import tensorflow as tf

        for value in _leaves(values):
            for leaf in jax.tree.leaves(in_components(value)):
                is_element = isinstance(leaf, tf.Operation) or tf.is_tensor(leaf)
                if is_element and getattr(leaf, "graph", None) is self.graph:
                    yield element_of(self.graph, leaf)

    def _trains(self, elements: Sequence[Any]) -> bool:
        """Returns whether elements assign variables, and need the input of a step."""
        key = tuple(element.name for element in elements)
        if key not in self._known_to_train:
            run = of_variables(self._model, None, elements, needs_inputs=True)
            self._known_to_train[key] = run is not None and bool(run.assigned)
        return self._known_to_train[key]

    def assigns(self, fetches: Any) -> bool:
        """Returns whether fetches assign only variables that the step does not use.

        See `HookedGraph`.
        """
        leaves = jax.tree.leaves(in_components(fetches))
        key = tuple(getattr(leaf, "name", leaf) for leaf in leaves)
        if key not in self._assigns:
            run = self.host_run(fetches, None)
            assigned = [] if run is None else run.assigned
            self._assigns[key] = bool(assigned) and self._used.isdisjoint(assigned)
        return self._assigns[key]

    def _counterpart(self, leaf: Any) -> _Part | None:
        """Returns the part for a fetch from the graph of another batch's shape.

        Operations of the host may depend on this shape. Returns `None` for other
        fetches and for operations that a hook has made in the other graph.
        """
        name = getattr(leaf, "name", leaf)
        try:
            element = self.graph.as_graph_element(name)
        except (KeyError, ValueError):
            return None
        return self._of_strings(element) if hasattr(element, "op") else None

    def _part(self, leaf: Any, requested: Collection[str] | None) -> _Part:
        import tensorflow as tf

        element = element_of(self.graph, leaf)
        if element is None:
            return _Part([leaf], lambda values: values[leaf])
        if isinstance(element, tf.Operation):
            is_value = isinstance(leaf, str) or element.type == "VarHandleOp"
            if not is_value or len(element.outputs) != 1:
                return self._operation(element)
            (element,) = element.outputs
        return self._tensor(element, requested)

    def _operation(self, op: Any) -> _Part:
        """Returns an empty part for an operation, which has no value."""
        stateful = [
            operation
            for operation in reachable(self.graph, [op])
            if operation.op_def is not None and operation.op_def.is_stateful
        ]
        if stateful:
            raise ValueError(
                "Hooks must fetch tensors, because operations within the step "
                f"have no effect on the devices. Received: {op.name} "
                f"({op.type}), made at {line_of(op)}. Make it part of "
                "train_op or of host_call, or run it between steps with "
                "`session.run`, on a batch of its own if it needs one."
            )
        return _Part([], lambda values: None)

    def _tensor(self, tensor: Any, requested: Collection[str] | None) -> _Part:
        import tensorflow as tf

        variable = _variable_read(tensor.op)
        if variable in self._model.variables:
            read = self._model.variables[variable].dtype.as_numpy_dtype
            return _one(variable, read)
        if tensor.dtype == tf.resource:
            raise ValueError(
                "A hook must make its variables in `begin`, and they cannot "
                f"hold strings. Received: {tensor.name}, made at "
                f"{line_of(tensor.op)}. Keep the value in an attribute of the "
                "hook."
            )
        name = tensor.name.removesuffix(":0")
        dtype = tensor.dtype.as_numpy_dtype
        if requested is not None and name in requested:
            return _one(name, dtype)
        part = self._of_strings(tensor)
        if requested is None:
            part = part or self._of_unused(tensor)
            return part or _one(name, dtype)
        part = part or self._of_variables(tensor)
        always = self._model.variables
        if part is not None and {*part.names} <= {*requested, *always}:
            return part
        raise ValueError(
            "A hook can fetch variables at any time, and tensors of the step "
            f"if `before_run` asked for them. Received: {tensor.name} "
            f"({tensor.op.type}), made at {line_of(tensor.op)}. Return it "
            "from `before_run` in tf.compat.v1.train.SessionRunArgs."
        )

    @_remembered
    def _of_strings(self, tensor: Any) -> _Part | None:
        """Returns a part that the host computes from tensors, or `None`."""
        definition = definition_of(self.graph)
        ops = reachable(self.graph, [tensor])
        if not any(
            reason_against(op, definition.nodes[op.name], definition.library)
            for op in ops
        ):
            return None
        part = cut(self.graph, [tensor], {})
        if any(node.op == "Placeholder" for node in part.definition.node):
            raise ValueError(
                "A hook cannot fetch strings or sparse tensors of the input, because "
                f"they stay on the host. Received: {tensor.name}, made at "
                f"{line_of(tensor.op)}. Return it in predictions or eval_metrics, or "
                "log it in input_fn."
            )
        on_host = part.graph()
        run = on_host.callable([on_host.graph.get_tensor_by_name(tensor.name)])
        inputs = [self._tensor(border, None) for border in part.boundary]

        def make(values: ArraysByPath) -> Any:
            arrays = [source.make(values) for source in inputs]
            for boundary, array in zip(part.boundary, arrays, strict=True):
                if not boundary.shape.is_compatible_with(array.shape):
                    # A hook has made the tensor for batches of another shape.
                    raise KeyError(tensor.name)
            return run(*arrays)[0]

        return _Part([n for source in inputs for n in source.names], make)

    @_remembered
    def _of_variables(self, tensor: Any) -> _Part | None:
        """Returns a part that the host computes from variables, or `None`."""
        run = of_variables(self._model, tensor, [tensor])
        if run is None or run.assigned:
            return None
        return _Part(run.names, lambda values: run.run(values)[0])

    def _of_unused(self, tensor: Any) -> _Part | None:
        """Returns a part of variables that the step does not use, or `None`."""
        part = self._of_variables(tensor)
        if part is None or not part.names or not self._used.isdisjoint(part.names):
            return None
        return part


def _leaves(value: Any, depth: int = 4) -> Iterator[Any]:
    """Yields the objects in nested containers, whose keys need not be sortable."""
    if isinstance(value, Mapping):
        value = [*value.values()]
    if not isinstance(value, list | tuple | set):
        yield value
    elif depth:
        for child in [*value]:
            yield from _leaves(child, depth - 1)


def _fetched(spec: Spec) -> Any:
    """Returns the fetches of each run in TensorFlow's estimator."""
    if spec.mode == ModeKeys.TRAIN:
        return [spec.train_op, spec.loss]
    return spec.predictions if spec.mode == ModeKeys.PREDICT else [spec.loss]


def _with_call_variables(model: ModelGraph) -> ModelGraph:
    """Returns a graph whose hooks can use some variables of a call.

    These are the number of evaluated batches, and the variables in no collection.
    """
    counted = {n: v for n, v in model.local.items() if n == EVAL_STEP}
    variables = {**model.variables, **counted, **model.loose}
    return dataclasses.replace(model, variables=variables)


def _one(name: str, dtype: Any) -> _Part:
    """Returns a named value in the dtype that it has in the graph.

    Like a TensorFlow session, it returns scalars as NumPy scalars.
    """
    return _Part([name], lambda values: np.asarray(values[name], dtype)[()])


def _variable_read(op: Any) -> str | None:
    """Returns the name of the variable that an operation reads, or `None`."""
    for origin in _passed_on(op):
        if origin.type == "VarHandleOp":
            return str(origin.name)
    return None


def _passed_on(op: Any) -> Iterator[Any]:
    """Yields an operation, and those that have the same value."""
    yield op
    while op.type in ("Identity", "ReadVariableOp"):
        op = op.inputs[0].op
        yield op
