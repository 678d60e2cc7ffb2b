"""The metrics that a model's layers update in their `call`."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras

from keras_tpu_estimator.base.common.types import MetricFn, PyTree
from keras_tpu_estimator.base.tracing.analyses import are_added_to, varying
from keras_tpu_estimator.base.tracing.variables import copying, scope_for
from keras_tpu_estimator.base.upstream import keras_state
from keras_tpu_estimator.front_ends.compiled.metric_update import SeparateScope
from keras_tpu_estimator.front_ends.compiled.training_metrics import Result

HostMetrics = tuple[MetricFn, list[PyTree]]


@dataclasses.dataclass(frozen=True)
class LayerMetrics:
    """Metrics of layers that only add to their variables in one call of a model."""

    metrics: Sequence[keras.metrics.Metric]

    @classmethod
    def from_call(
        cls, model: keras.Model, call: Callable[[], PyTree]
    ) -> "LayerMetrics":
        """Returns those of a model, and sets their variables to zero for `call`.

        It warns about others, which an estimator does not compute.
        """
        owned = model.metrics
        if not owned:
            return cls(())
        added = _added(owned, call)
        ignored = sorted({metric.name for metric in owned if metric not in added})
        if ignored:
            warnings.warn(
                f"The metrics of the layers in {model.name!r} must only add numbers "
                "to their variables, and the layers must not use them. Received "
                f"{ignored}, which logs and evaluations lack. Pass metrics to "
                "`compile` instead.",
                UserWarning,
                stacklevel=2,
            )
        for variable in _variables(added):
            variable.assign(keras.ops.zeros(variable.shape, variable.dtype))
        return cls(added)

    def beside(
        self, host: HostMetrics | None, names: Mapping[str, str]
    ) -> HostMetrics | None:
        """Returns the metrics of a spec with these metrics after the call."""
        if not self.metrics:
            return host
        changes = [variable.value[None] for variable in _variables(self.metrics)]
        function, tensors = host or (dict, [])

        def metric_fn(
            tensors: Sequence[PyTree], changes: Sequence[jax.Array]
        ) -> dict[str, keras.metrics.Metric]:
            return {**function(*tensors), **self._results(changes, names)}

        return metric_fn, [tensors, changes]

    def _results(
        self, changes: Sequence[jax.Array], names: Mapping[str, str]
    ) -> dict[str, keras.metrics.Metric]:
        scope = scope_for("metric_fn")
        results: dict[str, Any] = {}
        with copying():
            for variable, change in zip(_variables(self.metrics), changes, strict=True):
                before = scope.value_before(variable)
                variable.assign(before + jnp.sum(change, axis=0, dtype=before.dtype))
            for metric in self.metrics:
                value = metric.result()
                results |= value if isinstance(value, dict) else {metric.name: value}
        return {names.get(name, name): Result(value) for name, value in results.items()}


def _added(
    metrics: Sequence[keras.metrics.Metric], call: Callable[[], PyTree]
) -> list[keras.metrics.Metric]:
    """Returns the metrics to whose variables a call only adds, or none if its result
    depends on any of them.
    """
    variables = _variables(metrics)
    paths = [variable.path for variable in variables]

    def run(values: list[jax.Array]) -> PyTree:
        with (
            keras_state.fresh_names(),
            SeparateScope(dict(zip(paths, values, strict=True))) as scope,
            scope.copying(),
        ):
            result = call()
            after = [variable.value for variable in variables]
            updated = scope.updated - {*paths}
            return after, (result, [scope.values[path] for path in sorted(updated)])

    specs = [jax.ShapeDtypeStruct(v.shape, v.value.dtype) for v in variables]
    traced = jax.make_jaxpr(run)(specs)
    count = len(specs)
    if any(varying(traced, [True] * count, ["states"])[count:]):
        return []
    added = dict(zip(paths, are_added_to(traced, count), strict=True))
    return [
        metric for metric in metrics if all(added[v.path] for v in metric.variables)
    ]


def _variables(metrics: Sequence[keras.metrics.Metric]) -> list[keras.Variable]:
    return [variable for metric in metrics for variable in metric.variables]
