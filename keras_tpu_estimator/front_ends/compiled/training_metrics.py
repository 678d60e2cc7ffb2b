"""The metrics of `compile`, updated during training.

Each step updates the metrics with its own batch, from zero, on the devices. The
host adds up the metrics' variables, which are small even if outputs are large.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import keras

from keras_tpu_estimator.base.common.types import MetricFn, PyTree
from keras_tpu_estimator.base.tracing.variables import VariableScope, scope_for
from keras_tpu_estimator.base.upstream import keras_models, keras_names
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
            keras_models.give_direction(self, direction)

    def result(self) -> jax.Array:
        """Returns the value."""
        return self._value


def results_of(
    model: keras.Model, names: Mapping[str, str]
) -> dict[str, keras.metrics.Metric]:
    """Returns the results of a model's metrics, except the loss, renamed by `names`."""
    metrics = keras_models.metrics_of(model)
    directions = keras_models.directions_of(metrics)
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
        tensors = self.labels, self.outputs, self.weights
        # The losses of single outputs.
        model.compute_loss(None, *tensors)
        model.compute_metrics(None, *tensors)

    def mapped(self, function: Callable[[Any], Any]) -> "Counted":
        """Returns the same structure with a function applied to each tensor."""
        tensors = self.labels, self.outputs, self.weights
        return Counted(*jax.tree.map(function, tensors))


def training_metrics(
    training: CompileArguments, counted: Counted, names: Mapping[str, str]
) -> tuple[MetricFn, list[jax.Array]] | None:
    """Returns the `train_metrics` of a spec, or `None` if `compile` has no metrics."""
    try:
        changes = _changes(training, counted)
    except _NEEDS_CONCRETE_VALUES as error:
        _logger.warning(
            "Training does not log the metrics of `compile`, because one of "
            "them cannot be compiled; `evaluate` returns them. %s",
            str(error).partition("\n")[0],
        )
        return None
    if not changes:
        return None
    specs = counted.mapped(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype))
    return _metric_fn(training, specs, names), changes


def _metric_fn(
    training: CompileArguments, specs: Counted, names: Mapping[str, str]
) -> MetricFn:
    """Returns the `metric_fn` that adds up the updates of steps."""

    def metric_fn(*changes: jax.Array) -> dict[str, keras.metrics.Metric]:
        model = RecompiledModel(training)
        # Metrics create their variables in their first update.
        specs.mapped(_zeros).by(model)
        scope = scope_for("metric_fn")
        for variable, change in zip(_variables(model), changes, strict=True):
            before = scope.value_before(variable)
            variable.assign(before + jnp.sum(change, axis=0, dtype=before.dtype))
        return results_of(model, names)

    return metric_fn


class _Uncounted(VariableScope):
    """A scope inside that of a program, whose variables the program lacks."""

    def _introduce(self, path: str) -> None:
        self.values[path] = self.before[path] = self._initial(path)


def _changes(training: CompileArguments, counted: Counted) -> list[jax.Array]:
    """Returns the changes of the variables in a step, as `[1, ...]`."""
    scope = _Uncounted({}, {}, {})
    with keras_names.fresh_names(), scope:
        model = RecompiledModel(training)
        counted.by(model)
        return [
            (variable.value - scope.value_before(variable))[None]
            for variable in _variables(model)
        ]


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
