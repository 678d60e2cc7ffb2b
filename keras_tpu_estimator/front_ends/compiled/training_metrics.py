"""The metrics of `compile`, updated during training and evaluation.

If all metrics only add to their variables, as those of Keras do, each step of training
updates them with its own batch, from zero, on the devices. The host adds up the
variables, which are small even if outputs are large. Otherwise, as in evaluation, the
host receives labels and outputs, and updates the metrics.
"""

import logging
import warnings
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import keras

from keras_tpu_estimator.base.common.types import Labels, MetricFn, PyTree
from keras_tpu_estimator.base.tracing.variables import (
    ArraysByPath,
    scope_for,
)
from keras_tpu_estimator.base.upstream import keras_models
from keras_tpu_estimator.front_ends.compiled.compile_arguments import (
    CompileArguments,
    RecompiledModel,
)
from keras_tpu_estimator.front_ends.compiled.metric_update import (
    LOSS,
    Counted,
    MetricUpdate,
    build,
    masked,
    masks_of,
    spec_of,
    variables_of,
)


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


def training_metrics(
    training: CompileArguments, counted: Counted, names: Mapping[str, str]
) -> tuple[MetricFn, list[PyTree]] | None:
    """Returns the `train_metrics` of a spec, or `None` if `compile` has no metrics."""
    try:
        update = MetricUpdate.from_arguments(training, counted)
        are_sums = update.adds_sums()
    except _NEEDS_CONCRETE_VALUES as error:
        _logger.warning(
            "Training does not log the metrics of `compile`, because one of "
            "them cannot be compiled; `evaluate` returns them. %s",
            str(error).partition("\n")[0],
        )
        return None
    if not update.paths:
        return None
    if are_sums:
        metric_fn = _metric_fn_of_sums(training, counted.mapped(spec_of), names)
        tensors: list[PyTree] = update.changes()
    else:
        metric_fn, tensors = evaluation_metrics(training, counted, names)
    return _without(metric_fn, _fixed(update.reads, names)), tensors


def _fixed(reads: Mapping[str, set[str]], names: Mapping[str, str]) -> frozenset[str]:
    """Returns the names of metrics that read variables of others, after a warning."""
    fixed = {names.get(name, name): sorted(paths) for name, paths in reads.items()}
    for name, paths in fixed.items():
        if paths:
            warnings.warn(
                f"The metric {name!r} must only use labels, outputs and its own "
                f"variables. Received one that reads {paths}, which an estimator "
                "does not train. It is left out of the logs of training. Remove it; "
                "the event files contain `learning_rate`.",
                UserWarning,
                stacklevel=2,
            )
    return frozenset(name for name, paths in fixed.items() if paths)


def _without(metric_fn: MetricFn, left_out: frozenset[str]) -> MetricFn:
    """Returns a `metric_fn` that lacks some results."""
    if not left_out:
        return metric_fn

    def of_others(*tensors: PyTree) -> dict[str, keras.metrics.Metric]:
        results = metric_fn(*tensors)
        return {
            name: metric for name, metric in results.items() if name not in left_out
        }

    return of_others


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
        counted = Counted(labels, masked(outputs, masks), weights)
        _begin(model, counted)
        counted.by(model)
        return results_of(model, names)

    return metric_fn, [*counted.tensors, masks_of(counted.outputs)]


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
        for variable, change in zip(variables_of(model), changes, strict=True):
            start = before.get(variable.path, scope.value_before(variable))
            variable.assign(start + jnp.sum(change, axis=0, dtype=start.dtype))
        return results_of(model, names)

    return metric_fn


def _begin(model: keras.Model, counted: Counted) -> ArraysByPath:
    """Builds a model's metrics, and resets them in the first step, as `fit` does, which
    may set other values than initial ones. Returns their values by path.
    """
    build(model, counted)
    variables = variables_of(model)
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


def _zeros(spec: jax.ShapeDtypeStruct) -> jax.Array:
    """Returns one example of the same shapes and dtypes, with zeros."""
    return jnp.zeros((1, *spec.shape[1:]), spec.dtype)
