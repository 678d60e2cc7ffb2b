"""Functions of `tf.estimator` that extend an estimator or describe its input."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.api.model_fn.export_outputs import PredictOutput
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.params import argument_names
from keras_tpu_estimator.tf1_tools.tf_estimator.estimators import Estimator

_METRIC_ARGUMENTS = "features", "labels", "predictions", "config"


def add_metrics(estimator: Estimator, metric_fn: Callable[..., Any]) -> Estimator:
    """Returns an estimator that evaluates more metrics.

    Args:
        estimator: An `Estimator`, whose `model_dir` the new one shares.
        metric_fn: Returns a dict of metrics. It takes any of the arguments `features`,
            `labels`, `predictions` and `config`.

    Raises:
        ValueError: `metric_fn` has other arguments.
    """
    names = argument_names(metric_fn)
    unknown = sorted(set(names) - set(_METRIC_ARGUMENTS))
    if unknown:
        raise ValueError(
            f"`metric_fn` must take only {list(_METRIC_ARGUMENTS)}. Received a "
            f"function of {unknown}. Bind other arguments with functools.partial."
        )

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        spec = estimator.model_fn(features, labels, mode, config)
        if mode != ModeKeys.EVAL:
            return spec
        given = dict(
            zip(
                _METRIC_ARGUMENTS,
                (features, labels, spec.predictions, config),
                strict=True,
            )
        )
        added = metric_fn(**{name: given[name] for name in names})
        return spec._replace(eval_metric_ops={**(spec.eval_metric_ops or {}), **added})

    return _like(estimator, model_fn)


def forward_features(
    estimator: Estimator,
    keys: str | Sequence[str] | None = None,
    sparse_default_values: Mapping[str, Any] | None = None,
) -> Estimator:
    """Returns an estimator whose predictions contain features.

    Args:
        estimator: An `Estimator` with a dict of predictions.
        keys: The keys of the features. `None` means all.
        sparse_default_values: The values of missing cells of sparse features, by key.

    Raises:
        ValueError: In prediction, a feature is missing, or a prediction has its name.
    """
    keys = [keys] if isinstance(keys, str) else keys
    defaults = sparse_default_values or {}

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        spec = estimator.model_fn(features, labels, mode, config)
        if mode != ModeKeys.PREDICT:
            return spec
        chosen = list(features) if keys is None else keys
        wrong = [
            key for key in chosen if key not in features or key in spec.predictions
        ]
        if wrong:
            raise ValueError(
                "`keys` must name features, and no predictions. Received: "
                f"{wrong}, features {sorted(features)} and predictions "
                f"{sorted(spec.predictions)}. Change `keys`."
            )
        added = {key: _dense(features[key], defaults.get(key)) for key in chosen}
        outputs = {
            name: PredictOutput({**output.outputs, **added})
            if isinstance(output, PredictOutput)
            else output
            for name, output in (spec.export_outputs or {}).items()
        }
        return spec._replace(
            predictions={**spec.predictions, **added}, export_outputs=outputs or None
        )

    return _like(estimator, model_fn)


def _like(estimator: Estimator, model_fn: Callable[..., Any]) -> Estimator:
    """Returns an estimator with another `model_fn`."""
    start = estimator._context.warm_start
    return Estimator(
        model_fn, estimator.model_dir, estimator.config, warm_start_from=start
    )


def _dense(feature: Any, default: Any) -> Any:
    if isinstance(feature, tf.SparseTensor):
        return tf.sparse.to_dense(feature, default_value=default)
    return feature


def classifier_parse_example_spec(
    feature_columns: Sequence[Any],
    label_key: str,
    label_dtype: Any = tf.int64,
    label_default: Any = None,
    weight_column: Any = None,
) -> dict[str, Any]:
    """Returns the spec of `tf.io.parse_example` for a classifier's examples."""
    label = tf.FixedLenFeature((1,), label_dtype, label_default)
    return _parse_spec(feature_columns, label_key, label, weight_column)


def regressor_parse_example_spec(
    feature_columns: Sequence[Any],
    label_key: str,
    label_dtype: Any = tf.float32,
    label_default: Any = None,
    label_dimension: int = 1,
    weight_column: Any = None,
) -> dict[str, Any]:
    """Returns the spec of `tf.io.parse_example` for a regressor's examples."""
    label = tf.FixedLenFeature((label_dimension,), label_dtype, label_default)
    return _parse_spec(feature_columns, label_key, label, weight_column)


def _parse_spec(columns: Any, label_key: str, label: Any, weights: Any) -> Any:
    spec = tf.feature_column.make_parse_example_spec(columns)
    if isinstance(weights, str):
        weights = tf.feature_column.numeric_column(weights)
    added = {label_key: label}
    if weights is not None:
        added |= weights.parse_example_spec
    both = sorted(spec.keys() & added.keys())
    if both:
        raise ValueError(
            f"The label and the weights must not be features. Received: {both}. Remove "
            "these from `feature_columns`."
        )
    return {**spec, **added}
