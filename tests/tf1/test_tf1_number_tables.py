"""Lookups in tables of numbers, compared with the tables of TensorFlow."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import lookup_ops
from tf1_programs import estimator, fed

from keras_tpu_estimator.tf1.graph import lookups

X = np.array([[7, 3], [0, -1], [12, 5], [3, 2**30]] * 4)


def looked_up(ids):
    """Returns lookups of integers and numbers, and in an index."""
    pairs = tf.lookup.KeyValueTensorInitializer
    numbers = np.array([12, 3, 7])
    keys = tf.constant(numbers)
    whole = tf.lookup.StaticHashTable(pairs(keys, tf.constant([5, 6, 7])), -1)
    real = tf.lookup.StaticHashTable(pairs(keys, [0.5, 1.5, 2.5]), 9.0)
    index = lookup_ops.index_table_from_tensor(keys, dtype=tf.int64)
    # Integers have 64 bits within a step.
    large = tf.constant(numbers + 2**40), tf.constant(numbers * 2**40)
    wide = tf.lookup.StaticHashTable(pairs(*large), -(2**41))
    return {
        "whole": whole.lookup(ids),
        "real": real[ids],
        "index": index.lookup(ids),
        "wide": wide.lookup(ids + 2**40) // 2**40,
    }


def model_fn(features, labels, mode, params):
    return kte.tf1.TPUEstimatorSpec(mode, predictions=looked_up(features))


def test_devices_look_up_numbers_as_tables_do(tmp_path):
    found = [*estimator(model_fn, tmp_path).predict(fed([X]))]
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = looked_up(tf.constant(X))
        session.run(tf.tables_initializer())
        expected = session.run(tensors)
    for name, values in expected.items():
        np.testing.assert_array_equal([row[name] for row in found], values)


@pytest.mark.parametrize(
    ("keys", "values", "default"),
    [
        ([3, 3], [1, 2], 0),
        ([], [], 0),
    ],
)
def test_other_tables_stay_on_the_host(keys, values, default):
    table = (np.array(each, "int64") for each in (keys, values, default))
    assert lookups.pairs_of(*table) is None


@pytest.mark.parametrize("varying", range(3))
def test_tables_that_vary_stay_on_the_host(varying):
    constant = [np.array([1, 2]), np.array([3, 4]), np.array(0)]
    assert lookups.pairs_of(*constant) is not None
    constant[varying] = None
    assert lookups.pairs_of(*constant) is None
