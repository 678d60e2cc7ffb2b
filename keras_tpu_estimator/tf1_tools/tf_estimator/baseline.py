"""The baseline estimators of `tf.estimator`, which ignore the features."""

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.tf1_tools.tf_estimator.estimators import Estimator
from keras_tpu_estimator.tf1_tools.tf_estimator.heads import Head
from keras_tpu_estimator.tf1_tools.tf_estimator.premade import (
    CLASSES,
    NUMBERS,
    WithHead,
    arguments_of,
    get_optimizer_instance,
)

_RATE = 0.3
_REST = "optimizer config loss_reduction"


class BaselineEstimator(Estimator):
    """A model that learns one bias for each logit, with any head.

    The arguments of this class, and of the others of this file, are those of
    `tf.estimator`.
    """

    def __init__(
        self,
        head: Head,
        model_dir: Any = None,
        optimizer: Any = "Ftrl",
        config: Any = None,
    ):
        super().__init__(_model_fn(head, optimizer), model_dir, config)


class BaselineClassifier(WithHead, BaselineEstimator):
    """A model that learns the frequencies of two or more classes."""

    __signature__ = arguments_of(f"model_dir {CLASSES} {_REST}")


class BaselineRegressor(WithHead, BaselineEstimator):
    """A model that learns the mean of the labels."""

    __signature__ = arguments_of(f"model_dir {NUMBERS} {_REST}")


def _model_fn(head: Head, optimizer: Any) -> Callable[..., Any]:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        if not isinstance(features, dict) or not features:
            raise ValueError(
                "Features must be a dict with at least one tensor, because it has the "
                f"size of the batch. Received: {features!r}. Return one from input_fn."
            )
        rows = tf.shape(next(iter(features.values())))[0]
        units = head.logits_dimension
        with tf.variable_scope("baseline"):
            zeros = tf.zeros_initializer()
            bias = tf.get_variable("bias", [units], initializer=zeros)
            logits = bias * tf.ones([rows, units])

        return head.create_estimator_spec(
            features=features,
            mode=mode,
            logits=logits,
            labels=labels,
            optimizer=get_optimizer_instance(optimizer, _RATE),
        )

    return model_fn
