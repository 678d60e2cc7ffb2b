"""The metrics of `compile`, updated during training and evaluation.

If all metrics only add to their variables, as those of Keras do, each step of training
updates them with its own batch, from zero, on the devices. The host adds up the
variables, which are small even if outputs are large. Otherwise, as in evaluation, the
host receives labels and outputs, and updates the metrics.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.extend import core as jex

from keras_tpu_estimator.base.common.types import Labels, MetricFn, PyTree
from keras_tpu_estimator.base.tracing import jaxprs, keras_internals
from keras_tpu_estimator.base.tracing.analyses import are_added_to, varying
from keras_tpu_estimator.base.tracing.variables import (
    ArraysByPath,
    VariableScope,
    scope_for,
)
from keras_tpu_estimator.front_ends.compiled.compile_arguments import (
    CompileArguments,
    RecompiledModel,
)

# The name of the metric that training and evaluation add by themselves.
LOSS = "loss"


class Result(keras.metrics.Metric):
    """A metric with a fixed value, computed by other metrics, and its direction of
    improvement, "up" or "down".
    """

    def __init__(self, value: jax.Array, direction: str | None = None):
        super().__init__(name="result")
        self._value = value
        if direction is not None:
            keras_internals.give_direction(self, direction)

    def result(self) -> jax.Array:
        """Returns the value."""
        return self._value


def results_of(
    model: keras.Model, names: Mapping[str, str]
) -> dict[str, keras.metrics.Metric]:
    """Returns the results of a model's metrics, except the loss, renamed by `names`."""
    metrics = keras_internals.metrics_of(model)
    directions = keras_internals.directions_of(metrics)
    return {
        names.get(name, name): Result(value, directions.get(name))
        for name, value in model.get_metrics_result().items()
        if name != LOSS
    }


_NEEDS_CONCRETE_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
)
_logger = logging.getLogger("keras_tpu_estimator")


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


def training_metrics(
    training: CompileArguments, counted: Counted, names: Mapping[str, str]
) -> tuple[MetricFn, list[PyTree]] | None:
    """Returns the `train_metrics` of a spec, or `None` if `compile` has no metrics."""
    try:
        traced = _Traced.of(training, counted)
        are_sums = _are_sums(training, traced)
    except _NEEDS_CONCRETE_VALUES as error:
        _logger.warning(
            "Training does not log the metrics of `compile`, because one of "
            "them cannot be compiled; `evaluate` returns them. %s",
            str(error).partition("\n")[0],
        )
        return None
    if not traced.paths:
        return None
    if not are_sums:
        return evaluation_metrics(training, counted, names)
    specs = counted.mapped(_spec)
    return _metric_fn_of_sums(training, specs, names), traced.changes()


def evaluation_metrics(
    training: CompileArguments, counted: Counted, names: Mapping[str, str]
) -> tuple[MetricFn, list[PyTree]]:
    """Returns the `eval_metrics` of a spec."""

    def metric_fn(
        labels: Labels,
        outputs: PyTree,
        weights: PyTree,
        masks: Sequence[jax.Array | None],
    ) -> dict[str, keras.metrics.Metric]:
        model = RecompiledModel(training)
        counted = Counted(labels, _masked(outputs, masks), weights)
        _begin(model, counted)
        counted.by(model)
        return results_of(model, names)

    return metric_fn, [*counted.tensors, _masks(counted.outputs)]


def _metric_fn_of_sums(
    training: CompileArguments, specs: Counted, names: Mapping[str, str]
) -> MetricFn:
    """Returns the `metric_fn` that adds up the changes of steps."""

    def metric_fn(*changes: jax.Array) -> dict[str, keras.metrics.Metric]:
        model = RecompiledModel(training)
        zeros = specs.mapped(_zeros)
        before = _begin(model, zeros)
        # Some metrics create variables in their first update.
        zeros.by(model)
        scope = scope_for("metric_fn")
        for variable, change in zip(_variables(model), changes, strict=True):
            start = before.get(variable.path, scope.value_before(variable))
            variable.assign(start + jnp.sum(change, axis=0, dtype=start.dtype))
        return results_of(model, names)

    return metric_fn


def _begin(model: keras.Model, counted: Counted) -> ArraysByPath:
    """Builds a model's metrics, and resets them in the first step, as `fit` does, which
    may set other values than initial ones. Returns their values by path.
    """
    for metric in model.metrics:
        if not getattr(metric, "built", True):
            metric.build(counted.labels, counted.outputs)
    variables = _variables(model)
    before = {variable.path: variable.value for variable in variables}
    has_begun = keras.Variable(
        False,
        dtype="bool",
        trainable=False,
        synchronization="on_read",
        name="has_begun",
    )
    model.reset_metrics()
    for variable in variables:
        value = before[variable.path]
        variable.assign(jnp.where(has_begun.value, value, variable.value))
    has_begun.assign(True)
    return {variable.path: variable.value for variable in variables}


class _Uncounted(VariableScope):
    """A scope inside that of a program, whose variables the program lacks."""

    def _introduce(self, path: str) -> None:
        self.values[path] = self.before[path] = self._initial(path)


@dataclasses.dataclass(frozen=True)
class _Traced:
    """The update of metrics by one step, as a traced function.

    Attributes:
        paths: The metrics' variables in the order of creation.
        function: Takes the variables' values before the update, in the order of sorted
            paths, and `counted` as leaves. Returns the values after it.
        counted: The tensors, or their shapes and dtypes.
    """

    paths: Sequence[str]
    function: jex.ClosedJaxpr
    counted: Counted

    @classmethod
    def of(cls, training: CompileArguments, counted: Counted) -> "_Traced":
        """Traces the update of the metrics of `compile`."""
        paths: list[str] = []
        masks = _masks(counted.outputs)

        def update(values: ArraysByPath, tensors: PyTree) -> ArraysByPath:
            labels, outputs, weights = tensors
            with keras_internals.fresh_names(), _Uncounted({}, values, {}):
                model = RecompiledModel(training)
                Counted(labels, _masked(outputs, masks), weights).by(model)
                variables = _variables(model)
                paths[:] = [variable.path for variable in variables]
                return {variable.path: variable.value for variable in variables}

        tensors = counted.tensors
        # The first call finds the variables.
        shapes = jax.eval_shape(update, {}, tensors)
        return cls(paths, jax.make_jaxpr(update)(shapes, tensors), counted)

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
            zeros = map(_zeros_like, self.function.in_avals[len(self.paths) :])
            values = jex.jaxpr_as_fun(function)(*self._zeros, *zeros)
        return dict(zip(numbers, map(np.asarray, values), strict=True))

    @property
    def _zeros(self) -> list[jax.Array]:
        return list(map(_zeros_like, self.function.in_avals[: len(self.paths)]))


def _are_sums(training: CompileArguments, traced: _Traced) -> bool:
    """Returns whether metrics only add a sum over examples to their variables.

    A number that they add in each step, whatever the batch, must be one of examples, so
    that several cores add it up.
    """
    if not all(are_added_to(traced.function, len(traced.paths))):
        return False
    of_one, of_two = (
        _Traced.of(training, traced.counted.mapped(functools.partial(_spec, by=by)))
        for by in (1, 2)
    )
    once, twice = of_one.constants(), of_two.constants()
    return all(np.array_equal(2 * once[n], twice.get(n, 0)) for n in once)


def _spec(tensor: jax.Array, by: int = 1) -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype of a tensor with a multiple of its examples."""
    examples, *shape = tensor.shape
    return jax.ShapeDtypeStruct((by * examples, *shape), tensor.dtype)


def _zeros_like(aval: Any) -> jax.Array:
    return jnp.zeros(aval.shape, aval.dtype)


def _variables(model: keras.Model) -> list[keras.Variable]:
    """Returns the variables of a model's metrics, in the order of creation."""
    return [
        variable
        for metric in model.metrics
        if metric.name != LOSS
        for variable in metric.variables
    ]


def _zeros(spec: jax.ShapeDtypeStruct) -> jax.Array:
    """Returns one example of the same shapes and dtypes, with zeros."""
    return jnp.zeros((1, *spec.shape[1:]), spec.dtype)


def _masks(outputs: PyTree) -> list[jax.Array | None]:
    """Returns the masks of a pytree of tensors, which copies of them lack."""
    return [keras_internals.mask_of(each) for each in jax.tree.leaves(outputs)]


def _masked(outputs: PyTree, masks: Sequence[jax.Array | None]) -> PyTree:
    leaves, tree = jax.tree.flatten(outputs)
    return jax.tree.unflatten(tree, map(keras_internals.with_mask, leaves, masks))
