"""Functions of features that return the logits of ready-made estimators."""

import numbers
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.base.common.params import argument_names
from keras_tpu_estimator.tf1_tools.tf_estimator.premade import Linear, Network


def dnn_logit_fn_builder(
    units: int,
    hidden_units: Iterable[int],
    feature_columns: Iterable[Any],
    activation_fn: Any,
    dropout: float | None,
    input_layer_partitioner: Any,
    batch_norm: bool,
) -> Callable[..., Any]:
    """Returns a function of `features` and `mode` that builds a network.

    Args:
        units: The number of logits.
        hidden_units: The number of units of each hidden layer.
        feature_columns: The feature columns.
        activation_fn: The activation of the hidden layers.
        dropout: The probability with which training drops a unit.
        input_layer_partitioner: Has no effect, because variables are not split.
        batch_norm: Whether hidden layers are normalized.

    Raises:
        ValueError: `units` is not an integer.
    """
    del input_layer_partitioner
    if not isinstance(units, numbers.Integral):
        raise ValueError(
            f"`units` must be an integer. Received: {units!r}. Pass the number of "
            "logits."
        )
    network = Network(
        tuple(feature_columns),
        tuple(hidden_units),
        activation=activation_fn,
        dropout=dropout,
        batch_norm=batch_norm,
    )

    def dnn_logit_fn(features: Any, mode: str) -> Any:
        return network.logits(features, units, mode)

    return dnn_logit_fn


def linear_logit_fn_builder(
    units: int, feature_columns: Iterable[Any], sparse_combiner: str = "sum"
) -> Callable[..., Any]:
    """Returns a function of `features` that builds a linear model.

    Args:
        units: The number of logits.
        feature_columns: The feature columns.
        sparse_combiner: The operation that combines the weights of several ids of an
            example. Defaults to 'sum'.
    """
    linear = Linear(tuple(feature_columns), combiner=sparse_combiner)

    def linear_logit_fn(features: Any) -> Any:
        return linear.logits(features, units)

    return linear_logit_fn


def call_logit_fn(
    logit_fn: Callable[..., Any], features: Any, mode: str, params: Any, config: Any
) -> Any:
    """Calls a function of features with those of the other arguments that it has.

    Args:
        logit_fn: A function of `features` and, if it has these arguments, of `mode`,
            `params` and `config`.
        features: The features.
        mode: A `ModeKeys`.
        params: The hyperparameters.
        config: The `RunConfig`.

    Returns:
        A tensor, or a dict of tensors.

    Raises:
        ValueError: The result is something else.
    """
    arguments = {"mode": mode, "params": params, "config": config}
    names = argument_names(logit_fn)
    logits = logit_fn(
        features=features, **{n: v for n, v in arguments.items() if n in names}
    )
    values = logits.values() if isinstance(logits, dict) else [logits]
    is_named = not isinstance(logits, dict) or all(isinstance(k, str) for k in logits)
    if not is_named or not all(isinstance(value, tf.Tensor) for value in values):
        raise ValueError(
            "`logit_fn` must return a tensor or a dict of tensors by strings. "
            f"Received: {logits!r}. Change what it returns."
        )
    return logits
