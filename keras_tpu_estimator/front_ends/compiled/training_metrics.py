"""The metrics of `compile`, counted while a model is trained.

Each step counts its own batch, from zero, on the devices. The host adds up the
counts, which are small where outputs may be large.
"""

import dataclasses
import logging
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import keras

from keras_tpu_estimator.front_ends.compiled.compile_arguments import (
    CompileArguments,
)
from keras_tpu_estimator.front_ends.compiled.compile_arguments import (
    RecompiledModel,
)
from keras_tpu_estimator.front_ends.compiled.metric_results import LOSS
from keras_tpu_estimator.front_ends.compiled.metric_results import results_of
from keras_tpu_estimator.ground.base.types import MetricFn
from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.ground.tracing import keras_internals
from keras_tpu_estimator.ground.tracing.variables import VariableScope
from keras_tpu_estimator.ground.tracing.variables import scope_for

_NEEDS_CONCRETE_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
)
_logger = logging.getLogger("keras_tpu_estimator")


@dataclasses.dataclass(frozen=True)
class Counted:
    """The tensors that metrics count in a step.

    Attributes:
        labels: Nest of tensors, or `None`.
        outputs: Nest of tensors.
        weights: Those of the examples, or `None`.
    """

    labels: Nest
    outputs: Nest
    weights: Nest

    def by(self, model: keras.Model) -> None:
        """Has a model's metrics count."""
        tensors = self.labels, self.outputs, self.weights
        # For the losses of single outputs.
        model.compute_loss(None, *tensors)
        model.compute_metrics(None, *tensors)

    def mapped(self, function: Callable[[Any], Any]) -> "Counted":
        """The same with a function applied to each tensor."""
        tensors = self.labels, self.outputs, self.weights
        return Counted(*jax.tree.map(function, tensors))


def training_metrics(
    training: CompileArguments, counted: Counted, names: Mapping[str, str]
) -> tuple[MetricFn, list[jax.Array]] | None:
    """The `train_metrics` of a spec, or `None` if `compile` has no metrics.

    Args:
        counted: The tensors of this step.
        names: Other names for metrics, by the names that Keras gives.
    """
    try:
        changes = _changes(training, counted)
    except _NEEDS_CONCRETE_VALUES as error:
        _logger.warning(
            "Training does not report the metrics of `compile`, because one "
            "of them cannot be compiled; `evaluate` reports them. %s",
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
    """The `metric_fn` that adds up what steps have counted."""

    def metric_fn(*changes: jax.Array) -> dict[str, keras.metrics.Metric]:
        model = RecompiledModel(training)
        # Metrics have their variables once they have counted something.
        specs.mapped(_zeros).by(model)
        scope = scope_for("metric_fn")
        for variable, change in zip(_variables(model), changes, strict=True):
            before = scope.value_before(variable)
            variable.assign(
                before + jnp.sum(change, axis=0, dtype=before.dtype)
            )
        return results_of(model, names)

    return metric_fn


class _Uncounted(VariableScope):
    """A scope inside that of a program, which its variables are no part of."""

    def _introduce(self, path: str) -> None:
        self.values[path] = self.before[path] = self._initial(path)


def _changes(training: CompileArguments, counted: Counted) -> list[jax.Array]:
    """What a step adds to each variable of the metrics, as `[1, ...]`."""
    scope = _Uncounted({}, {}, {})
    with keras_internals.fresh_names(), scope:
        model = RecompiledModel(training)
        counted.by(model)
        return [
            (variable.value - scope.value_before(variable))[None]
            for variable in _variables(model)
        ]


def _variables(model: keras.Model) -> list[keras.Variable]:
    """The variables of a model's metrics, in the order of their creation."""
    return [
        variable
        for metric in model.metrics
        if metric.name != LOSS
        for variable in metric.variables
    ]


def _zeros(spec: jax.ShapeDtypeStruct) -> jax.Array:
    """One example of the same kind, of zeros."""
    return jnp.zeros((1, *spec.shape[1:]), spec.dtype)
