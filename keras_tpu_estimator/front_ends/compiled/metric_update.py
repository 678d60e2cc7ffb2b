"""The update of the metrics of `compile` by one step, as a traced function."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.extend import core as jex

from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.tracing import jaxprs
from keras_tpu_estimator.base.tracing.analyses import are_added_to, varying
from keras_tpu_estimator.base.tracing.variables import (
    ArraysByPath,
    VariableScope,
    current_scope,
)
from keras_tpu_estimator.base.upstream import keras_layers, keras_models, keras_state
from keras_tpu_estimator.front_ends.compiled.compile_arguments import (
    CompileArguments,
    RecompiledModel,
)

# The name of the metric that training and evaluation add by themselves.
LOSS = "loss"


@dataclasses.dataclass(frozen=True)
class Counted:
    """The tensors of a step that metrics are computed from."""

    labels: PyTree
    outputs: PyTree
    weights: PyTree

    def by(self, model: keras.Model) -> None:
        """Updates a model's metrics."""
        # The losses of single outputs.
        model.compute_loss(None, *self.tensors)
        model.compute_metrics(None, *self.tensors)

    def mapped(self, function: Callable[[Any], Any]) -> "Counted":
        """Returns the same structure with a function applied to each tensor."""
        return Counted(*jax.tree.map(function, self.tensors))

    @property
    def tensors(self) -> PyTree:
        """The tensors as one pytree."""
        return self.labels, self.outputs, self.weights


class SeparateScope(VariableScope):
    """A scope inside that of a program, whose variables the program lacks.

    Attributes:
        reads: Paths of variables that were read, but neither made in this scope nor
            part of the program.
    """

    def __init__(self, values: ArraysByPath):
        super().__init__({}, values, {})
        self.reads: set[str] = set()
        self._program = current_scope()

    def get_current_value(self, variable: keras.Variable) -> jax.Array:
        """Returns the traced value of a variable, which the program may have."""
        path = variable.path
        if path not in self.initializers and path not in self.before:
            if self._program is not None and path in self._program.objects:
                return self._program.get_current_value(variable)
            self.reads.add(path)
        return super().get_current_value(variable)

    def _introduce(self, path: str) -> None:
        self.values[path] = self.before[path] = self._initial(path)


def build(model: keras.Model, counted: Counted) -> None:
    """Builds the metrics of a model, which makes most of their variables."""
    for metric in model.metrics:
        if not getattr(metric, "built", True):
            metric.build(counted.labels, counted.outputs)


def _noting_reads(model: keras.Model, scope: SeparateScope) -> dict[str, set[str]]:
    """Returns sets by the metrics' names, to which updates add what `scope` reads."""
    reads: dict[str, set[str]] = {}

    def updated(
        name: str, update: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        before, scope.reads = scope.reads, set()
        result = update(*args, **kwargs)
        reads[name] |= scope.reads
        scope.reads |= before
        return result

    for name, metric in keras_models.metrics_of(model).items():
        reads[name] = set()
        metric.update_state = functools.partial(updated, name, metric.update_state)
    return reads


@dataclasses.dataclass(frozen=True)
class MetricUpdate:
    """The update of metrics by one step, as a traced function.

    Attributes:
        paths: The metrics' variables in the order of creation.
        function: Takes the variables' values before the update, in the order of sorted
            paths, and `counted` as leaves. Returns the values after it.
        counted: The tensors, or their shapes and dtypes.
        reads: Paths of variables of others that metrics read, by the metric's name.
    """

    training: CompileArguments
    paths: Sequence[str]
    function: jex.ClosedJaxpr
    counted: Counted
    reads: Mapping[str, set[str]]

    @classmethod
    def from_arguments(
        cls, training: CompileArguments, counted: Counted
    ) -> "MetricUpdate":
        """Traces the update of the metrics of `compile`."""
        paths: list[str] = []
        reads: dict[str, set[str]] = {}
        masks = masks_of(counted.outputs)

        def update(values: ArraysByPath, tensors: PyTree) -> ArraysByPath:
            labels, outputs, weights = tensors
            counted = Counted(labels, masked(outputs, masks), weights)
            with keras_state.fresh_names(), SeparateScope(values) as scope:
                model = RecompiledModel(training)
                build(model, counted)
                reads.update(_noting_reads(model, scope))
                counted.by(model)
                variables = variables_of(model)
                paths[:] = [variable.path for variable in variables]
                return {variable.path: variable.value for variable in variables}

        tensors = counted.tensors
        # The first call finds the variables.
        shapes = jax.eval_shape(update, {}, tensors)
        function = jax.make_jaxpr(update)(shapes, tensors)
        return cls(training, paths, function, counted, reads)

    def changes(self) -> list[jax.Array]:
        """Returns what the update adds to each variable, as `[1, ...]`."""
        leaves = jax.tree.leaves(self.counted.tensors)
        values = jex.jaxpr_as_fun(self.function)(*self._zeros, *leaves)
        changes = dict(zip(sorted(self.paths), values, strict=True))
        return [changes[path][None] for path in self.paths]

    def constants(self) -> dict[int, np.ndarray]:
        """Returns those values, by their number, that do not depend on `counted`."""
        tensors = jax.tree.leaves(self.counted.tensors)
        inputs = [False] * len(self.paths) + [True] * len(tensors)
        differ = varying(self.function, inputs, ["examples"])
        numbers = [number for number, differs in enumerate(differ) if not differs]
        function = jaxprs.only(self.function, numbers, with_effects=False)
        with jax.ensure_compile_time_eval():
            zeros = map(_zeros_of, self.function.in_avals[len(self.paths) :])
            values = jex.jaxpr_as_fun(function)(*self._zeros, *zeros)
        return dict(zip(numbers, map(np.asarray, values), strict=True))

    def adds_sums(self) -> bool:
        """Returns whether metrics only add a sum over examples to their variables.

        A number that they add in each step, whatever the batch, must count examples, so
        that several cores add it up.
        """
        if not all(are_added_to(self.function, len(self.paths))):
            return False
        of_one, of_two = (
            MetricUpdate.from_arguments(
                self.training, self.counted.mapped(functools.partial(spec_of, by=by))
            )
            for by in (1, 2)
        )
        once, twice = of_one.constants(), of_two.constants()
        return all(np.array_equal(2 * once[n], twice.get(n, 0)) for n in once)

    @property
    def _zeros(self) -> list[jax.Array]:
        return list(map(_zeros_of, self.function.in_avals[: len(self.paths)]))


def spec_of(tensor: jax.Array, by: int = 1) -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype of a tensor with a multiple of its examples."""
    examples, *shape = tensor.shape
    return jax.ShapeDtypeStruct((by * examples, *shape), tensor.dtype)


def _zeros_of(aval: Any) -> jax.Array:
    return jnp.zeros(aval.shape, aval.dtype)


def variables_of(model: keras.Model) -> list[keras.Variable]:
    """Returns the variables of a model's metrics, in the order of creation."""
    return [
        variable
        for metric in model.metrics
        if metric.name != LOSS
        for variable in metric.variables
    ]


def masks_of(outputs: PyTree) -> list[jax.Array | None]:
    """Returns the masks of a pytree of tensors, which copies of them lack."""
    return [keras_layers.mask_of(output) for output in jax.tree.leaves(outputs)]


def masked(outputs: PyTree, masks: Sequence[jax.Array | None]) -> PyTree:
    leaves, tree = jax.tree.flatten(outputs)
    return jax.tree.unflatten(tree, map(keras_layers.with_mask, leaves, masks))
