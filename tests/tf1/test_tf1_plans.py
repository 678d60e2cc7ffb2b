"""Tests that plans of graphs name the user's lines."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers import batches_of, estimator_of

from keras_tpu_estimator.errors import DoesNotFitError

X = np.ones((2**14, 128), "float32")


def model_fn(features, labels, mode, params):
    kernel = tf.get_variable("kernel", [128, 2**18])
    wide = tf.tanh(tf.matmul(features, kernel))  # This line.
    loss = tf.reduce_mean(tf.square(tf.nn.softmax(wide)))
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    step = tf.train.get_global_step()
    return kte.tf1.TPUEstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(loss, step)
    )


def test_largest_arrays_have_lines(tmp_path):
    made = estimator_of(
        kte.tf1.model_fn(model_fn), tmp_path, use_tpu=True, batch=len(X)
    )
    with pytest.raises(DoesNotFitError) as caught:
        made.plan(batches_of(X), topology="v5e:1x1")
    first = model_fn.__code__.co_firstlineno
    operations = [each.operation for each in caught.value.largest]
    assert operations
    assert {each.line.file for each in operations} == {__file__}
    lines = {each.line.number - first for each in operations}
    assert lines <= {2, 3, 5}
    assert "front_end_step" not in str(caught.value)


def test_weights_include_only_trained_variables(tmp_path):
    made = estimator_of(kte.tf1.model_fn(model_fn), tmp_path, use_tpu=True, batch=16)
    plan = made.plan(batches_of(X[:16]), topology="v5e:1x1")
    assert plan.weights == 128 * 2**18
