"""Tests that devices refuse the operations that the checker lists."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import estimator, fed

from keras_tpu_estimator.tf1.names.catalogue import catalogue

X = np.ones((16, 2), "float32")


def square(x):
    return tf.reshape(x, [1, 4, 4, 2])


def times(x):
    return tf.reshape(x, [2, 4, 4])


def table(x):
    made = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a"], [2.0]), 0.0
    )
    return made.lookup(tf.constant("a"))


def sampled(x):
    labels = tf.ones([16, 1], tf.int64)
    return tf.nn.nce_loss(tf.ones([5, 2]), tf.ones([5]), labels, x, 2, 5)


# The functions, by the name that each uses.
REFUSED = {
    "tf.py_func": lambda x: tf.py_func(np.sin, [x], tf.float32),
    "tf.Session": lambda x: tf.Session().run(x),
    "tf.placeholder": lambda x: tf.placeholder(tf.float32, [2]),
    "tf.random_gamma": lambda x: tf.random_gamma([2], 1.0),
    "tf.random_poisson": lambda x: tf.random_poisson(1.0, [2]),
    "tf.bincount": lambda x: tf.bincount(tf.cast(x[:, 0], tf.int32)),
    "tf.histogram_fixed_width": lambda x: tf.histogram_fixed_width(x, [0.0, 1]),
    "tf.unique_with_counts": lambda x: tf.unique_with_counts(x[:, 0])[2],
    "tf.image.crop_and_resize": lambda x: tf.image.crop_and_resize(
        square(x), [[0.0, 0.0, 1.0, 1.0]], [0], [2, 2]
    ),
    "tf.image.resize_area": lambda x: tf.image.resize_area(square(x), [2, 2]),
    "tf.image.resize_bicubic": lambda x: tf.image.resize_bicubic(square(x), [2, 2]),
    "tf.nn.ctc_greedy_decoder": lambda x: tf.nn.ctc_greedy_decoder(
        times(x), [2, 2, 2, 2]
    )[1],
    "tf.nn.nce_loss": sampled,
    "tf.segment_sum": lambda x: tf.segment_sum(x, tf.range(16)),
    "tf.setdiff1d": lambda x: tf.setdiff1d(x[:, 0], x[:, 1])[0],
    "tf.train.batch": lambda x: tf.train.batch([x[0]], 2),
}
# Refused only if their arguments are dense numbers.
REFUSED_FOR_NUMBERS = {
    "tf.as_string": lambda x: tf.string_to_number(tf.as_string(x)),
    "tf.decode_raw": lambda x: tf.decode_raw(tf.as_string(x), tf.uint8),
    "tf.lookup.StaticHashTable": table,
    "tf.timestamp": lambda x: tf.timestamp() + tf.cast(x, tf.float64),
}
ALLOWED = {
    "tf.Print": lambda x: tf.Print(x, [x, tf.timestamp()]),
    "tf.unique": lambda x: tf.unique(x[:, 0])[0],
    "tf.boolean_mask": lambda x: tf.boolean_mask(x, x > 0),
    "tf.multinomial": lambda x: tf.multinomial(x, 2),
    "tf.unsorted_segment_sum": lambda x: tf.unsorted_segment_sum(x, tf.range(16), 16),
}


def evaluate(network, tmp_path):
    def model_fn(features, labels, mode, params):
        made = tf.cast(network(features), tf.float32)
        return kte.tf1.TPUEstimatorSpec(mode, loss=tf.reduce_sum(made))

    return estimator(model_fn, tmp_path).evaluate(fed([X]))


@pytest.mark.parametrize("name", REFUSED)
def test_operations_that_the_checker_refuses_are_refused(name, tmp_path):
    assert catalogue().refusal(name.removeprefix("tf."))
    with pytest.raises((ValueError, NotImplementedError, tf.OpError)):
        evaluate(REFUSED[name], tmp_path)


@pytest.mark.parametrize("name", REFUSED_FOR_NUMBERS)
def test_operations_that_depend_on_the_input_are_refused_for_numbers(name, tmp_path):
    assert not catalogue().refusal(name.removeprefix("tf."))
    with pytest.raises(ValueError, match="operations that a device|XLA cannot compile"):
        evaluate(REFUSED_FOR_NUMBERS[name], tmp_path)


@pytest.mark.parametrize("name", ALLOWED)
def test_operations_that_the_checker_accepts_run(name, tmp_path):
    assert not catalogue().refusal(name.removeprefix("tf."))
    assert np.isfinite(evaluate(ALLOWED[name], tmp_path)["loss"])


def test_ref_variables_are_refused(tmp_path):
    with pytest.raises(ValueError, match="which is not a resource variable"):
        evaluate(
            lambda x: x * tf.get_variable("a", [], use_resource=False),
            tmp_path,
        )
