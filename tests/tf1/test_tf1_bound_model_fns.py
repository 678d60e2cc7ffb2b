"""Tests the ways to bind arguments of a TF1 model_fn."""

import keras_tpu_estimator as kte  # isort: skip

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import fed

from keras_tpu_estimator.tf1_tools.tf_estimator import Estimator, tpu


def model_fn(features, labels, extra, mode, params):
    """Adds `extra` to `w` in each step."""
    w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(features) * 0.0
    step = tf.train.get_global_step()
    train_op = tf.group(w.assign_add(extra), step.assign_add(1))
    return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


class Callable:
    """Objects whose calls or methods are model_fns."""

    def __init__(self, extra):
        self.extra = extra

    def __call__(self, features, labels, mode, params):
        return model_fn(features, labels, self.extra, mode, params)

    def method(self, features, labels, mode, params, more):
        return self(features, labels, mode, {**params, "more": more})


def decorated(function):
    @functools.wraps(function)
    def decorator(*args, **kwargs):
        return function(*args, **kwargs)

    return decorator


BOUND = functools.partial(model_fn, extra=3.0)


@pytest.mark.parametrize(
    "bound",
    [
        BOUND,
        decorated(BOUND),
        functools.partial(functools.partial(model_fn, extra=9.0), extra=3.0),
        functools.partial(decorated(model_fn), extra=3.0),
        Callable(3.0),
        functools.partial(Callable(3.0).method, more=1),
    ],
    ids=["partial", "decorated", "nested", "within", "object", "method"],
)
@pytest.mark.parametrize("kind", [Estimator, tpu.TPUEstimator])
def test_bound_arguments_reach_the_function(tmp_path, bound, kind):
    if kind is Estimator:
        estimator = Estimator(bound, str(tmp_path), params={})
    else:
        config = tpu.RunConfig()
        estimator = tpu.TPUEstimator(
            bound, str(tmp_path), config, {}, False, train_batch_size=4
        )
    estimator.train(fed([np.ones((4, 1), "float32")]), steps=1)
    assert estimator.get_variable_value("w") == 3.0


def test_a_partial_of_a_marked_function_builds_a_graph(tmp_path):
    estimator = kte.TPUEstimator(
        functools.partial(kte.tf1.model_fn(model_fn), extra=3.0),
        str(tmp_path),
        kte.RunConfig(),
        train_batch_size=8,
    )
    estimator.train(fed([np.ones((8, 1), "float32")]), steps=1)
    assert estimator.get_variable_value("w") == 3.0


def test_bound_arguments_do_not_reach_an_input_fn(tmp_path):
    def input_fn(rows, params):
        assert params == {"mine": True}
        return np.ones((rows, 1), "float32")

    estimator = Estimator(BOUND, str(tmp_path), params={"theirs": True})
    bound = functools.partial(input_fn, rows=4, params={"mine": True})
    estimator.train(bound, steps=1)
    assert estimator.get_variable_value("w") == 3.0
