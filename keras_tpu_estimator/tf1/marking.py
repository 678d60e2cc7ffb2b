"""The mark of a `model_fn` that is written for TF1."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

from keras_tpu_estimator.tf1.graph.building import is_building
from keras_tpu_estimator.tf1.spec import Spec


class TF1ModelFn:
    """A `model_fn` that builds a graph. Made by `model_fn`.

    Args:
        function: The user's function.
    """

    def __init__(self, function: Callable[..., Spec]):
        # Arguments are passed according to the signature of the function.
        functools.update_wrapper(self, function)
        self._function = function

    @property
    def front_end(self) -> Any:
        """The `FrontEnd` that runs it."""
        # This import loads the conversion of graphs, so it happens on first use.
        from keras_tpu_estimator.tf1 import front_end

        return front_end.TF1

    def __call__(self, *args: Any, **kwargs: Any) -> Spec:
        """Calls the user's function, which must happen while a graph is built."""
        if not is_building():
            raise NotImplementedError(
                "A TF1 model_fn must be called by a TPUEstimator. Received a "
                "call from other code. If another model_fn calls it, wrap that: "
                "tf1.model_fn(function)."
            )
        with warnings.catch_warnings():
            # The warning of tf.layers recommends Keras layers.
            warnings.filterwarnings("ignore", r"`tf\.(layers|nn)\.")
            warnings.filterwarnings("ignore", r"`[Ll]ayer\.\w+` is deprecated")
            return self._function(*args, **kwargs)


def model_fn(function: Callable[..., Spec]) -> TF1ModelFn:
    """Marks a `model_fn` that is written for TF1, so that `TPUEstimator` can run it.

    The function builds a graph with `tf.compat.v1`, as with the original, and returns a
    `tf1.TPUEstimatorSpec` or a `tf1.EstimatorSpec`. It trains, evaluates and predicts
    in the device loop, with TF1's variable names. `metric_fn` and `host_call` run in
    TensorFlow sessions on the host.

    Args:
        function: A function of `features` and any of `labels`, `mode`, `params`
            and `config`. Features and labels are placeholders.

    Returns:
        A `model_fn` for `TPUEstimator`.

    Raises:
        TypeError: `function` is not callable.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import numpy as np
    >>> import tensorflow.compat.v1 as tf
    >>> def model_fn(features, labels, mode, params):
    ...     kernel = tf.get_variable("kernel", [2, 1])
    ...     loss = tf.reduce_mean((tf.matmul(features, kernel) - labels) ** 2)
    ...     if mode == kte.ModeKeys.EVAL:
    ...         return kte.tf1.TPUEstimatorSpec(mode, loss=loss)
    ...     optimizer = tf.tpu.CrossShardOptimizer(
    ...         tf.train.GradientDescentOptimizer(0.1))
    ...     return kte.tf1.TPUEstimatorSpec(
    ...         mode, loss=loss, train_op=optimizer.minimize(
    ...             loss, tf.train.get_global_step()))
    >>> def input_fn(params):
    ...     x = np.ones((params["batch_size"], 2), "float32")
    ...     return x, 3 * x[:, :1]
    >>> estimator = kte.TPUEstimator(
    ...     kte.tf1.model_fn(model_fn), config=kte.RunConfig(),
    ...     train_batch_size=8, eval_batch_size=8)
    >>> bool(estimator.train(input_fn, steps=100).evaluate(input_fn)["loss"]
    ...      < 1e-6)
    True
    """
    if not callable(function):
        raise TypeError(
            "`model_fn` must be callable. Received: "
            f"{function!r} of type {type(function).__name__}. Pass the function "
            "itself."
        )
    return TF1ModelFn(function)
