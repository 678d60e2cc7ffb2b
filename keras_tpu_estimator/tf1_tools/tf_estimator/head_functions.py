"""The functions that make heads, below `tf.contrib.estimator` and in `canned.head`."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.tf1_tools.tf_estimator.class_heads import (
    BinaryClassHead,
    MultiClassHead,
    MultiLabelHead,
    or_nan,
)
from keras_tpu_estimator.tf1_tools.tf_estimator.heads import (
    MEAN,
    SUM,
    BaseHead,
    LossSpec,
    RegressionHead,
)
from keras_tpu_estimator.tf1_tools.tf_estimator.multi_head import MultiHead

__all__ = [
    "LossSpec",
    "binary_classification_head",
    "logistic_regression_head",
    "multi_class_head",
    "multi_head",
    "multi_label_head",
    "poisson_regression_head",
    "regression_head",
]

# The keys of signatures, as programs read them from this module.
_CLASSIFY_SERVING_KEY = "classification"
_DEFAULT_SERVING_KEY = "serving_default"
_PREDICT_SERVING_KEY = "predict"
_REGRESS_SERVING_KEY = "regression"
# The base class of the heads of programs.
_Head = BaseHead
_LossFn = Callable[..., Any] | None


def binary_classification_head(
    weight_column: Any = None,
    thresholds: Sequence[float] | None = None,
    label_vocabulary: Sequence[str] | None = None,
    loss_reduction: str = MEAN,
    loss_fn: _LossFn = None,
    name: str | None = None,
) -> BinaryClassHead:
    """Makes a head of two classes with one logit.

    Args:
        weight_column: As in `heads.Head`.
        thresholds: As in `class_heads.BinaryClassHead`.
        label_vocabulary: See there.
        loss_reduction: As in `heads.Head`.
        loss_fn: See there.
        name: See there.
    """
    return BinaryClassHead(
        weight_column=weight_column,
        thresholds=thresholds,
        label_vocabulary=label_vocabulary,
        loss_reduction=loss_reduction,
        loss_fn=loss_fn,
        name=name,
    )


def multi_class_head(
    n_classes: int,
    weight_column: Any = None,
    label_vocabulary: Sequence[str] | None = None,
    loss_reduction: str = MEAN,
    loss_fn: _LossFn = None,
    name: str | None = None,
) -> MultiClassHead:
    """Makes a head of three or more classes; see `class_heads.MultiClassHead`."""
    return MultiClassHead(
        n_classes,
        weight_column=weight_column,
        label_vocabulary=label_vocabulary,
        loss_reduction=loss_reduction,
        loss_fn=loss_fn,
        name=name,
    )


def regression_head(
    weight_column: Any = None,
    label_dimension: int = 1,
    loss_reduction: str = MEAN,
    loss_fn: _LossFn = None,
    inverse_link_fn: Callable[[Any], Any] | None = None,
    name: str | None = None,
) -> RegressionHead:
    """Makes a head of numbers; see `heads.RegressionHead`."""
    return RegressionHead(
        weight_column=weight_column,
        label_dimension=label_dimension,
        loss_reduction=loss_reduction,
        loss_fn=loss_fn,
        inverse_link_fn=inverse_link_fn,
        name=name,
    )


def poisson_regression_head(
    weight_column: Any = None,
    label_dimension: int = 1,
    loss_reduction: str = MEAN,
    compute_full_loss: bool = True,
    name: str | None = None,
) -> RegressionHead:
    """Makes a head of counts, whose logits are logarithms of the predictions.

    Args:
        weight_column: As in `heads.RegressionHead`, like others.
        label_dimension: See there.
        loss_reduction: See there.
        compute_full_loss: Whether the loss contains the term that depends only on the
            labels. Defaults to `True`.
        name: See there.
    """

    def loss_fn(labels: Any, logits: Any) -> Any:
        labels = or_nan(labels, labels >= 0)
        return tf.nn.log_poisson_loss(labels, logits, compute_full_loss)

    return regression_head(
        weight_column, label_dimension, loss_reduction, loss_fn, tf.exp, name
    )


def logistic_regression_head(
    weight_column: Any = None,
    loss_reduction: str = MEAN,
    name: str | None = None,
) -> RegressionHead:
    """Makes a head of probabilities; see `heads.RegressionHead`."""

    def loss_fn(labels: Any, logits: Any) -> Any:
        labels = or_nan(labels, (labels >= 0) & (labels <= 1))
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)

    return regression_head(
        weight_column,
        loss_reduction=loss_reduction,
        loss_fn=loss_fn,
        inverse_link_fn=tf.sigmoid,
        name=name,
    )


def multi_label_head(
    n_classes: int,
    weight_column: Any = None,
    thresholds: Sequence[float] | None = None,
    label_vocabulary: Sequence[str] | None = None,
    loss_reduction: str = MEAN,
    loss_fn: _LossFn = None,
    classes_for_class_based_metrics: Sequence[Any] | None = None,
    name: str | None = None,
) -> MultiLabelHead:
    """Makes a head of any number of classes; see `class_heads.MultiLabelHead`."""
    return MultiLabelHead(
        n_classes,
        weight_column=weight_column,
        thresholds=thresholds,
        label_vocabulary=label_vocabulary,
        loss_reduction=loss_reduction,
        loss_fn=loss_fn,
        classes_for_class_based_metrics=classes_for_class_based_metrics,
        name=name,
    )


def multi_head(
    heads: Sequence[Any], head_weights: Sequence[float] | None = None
) -> MultiHead:
    """Makes a head of several heads; see `multi_head.MultiHead`."""
    return MultiHead(heads, head_weights)


def _summing(make: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that sums losses by default, as those of `canned.head` did."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def make_summing(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        return make(**{"loss_reduction": SUM} | arguments)

    return make_summing


_binary_logistic_head_with_sigmoid_cross_entropy_loss = _summing(
    binary_classification_head
)
_multi_class_head_with_softmax_cross_entropy_loss = _summing(multi_class_head)
_regression_head = _summing(regression_head)


def _binary_logistic_or_multi_class_head(
    n_classes: int, weight_column: Any, label_vocabulary: Any, loss_reduction: str
) -> BinaryClassHead | MultiClassHead:
    if n_classes == 2:
        return _binary_logistic_head_with_sigmoid_cross_entropy_loss(
            weight_column,
            label_vocabulary=label_vocabulary,
            loss_reduction=loss_reduction,
        )
    return _multi_class_head_with_softmax_cross_entropy_loss(
        n_classes, weight_column, label_vocabulary, loss_reduction
    )


def _summary_key(head_name: str | None, val: str) -> str:
    return f"{val}/{head_name}" if head_name else val
