"""Tests optimizers that update only the rows that a batch uses."""

import keras_tpu_estimator  # isort: skip  # noqa: F401

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers import slow
from tf1_programs import (
    assert_same,
    batches,
    each_by_its_own,
    model_fn_of,
    run_in_session,
    trained,
    variable,
)

ROWS, CLASSES = 20, 4
OPTIMIZERS = {
    "adadelta": lambda step: tf.train.AdadeltaOptimizer(0.1),
    "adagrad": lambda step: tf.train.AdagradOptimizer(0.1),
    "adagrad_da": lambda step: tf.train.AdagradDAOptimizer(0.1, step),
    "adam": lambda step: tf.train.AdamOptimizer(0.1),
    "centered": lambda step: tf.train.RMSPropOptimizer(0.1, centered=True),
    "ftrl": lambda step: tf.train.FtrlOptimizer(0.1),
    "ftrl_v2": lambda step: tf.train.FtrlOptimizer(
        0.1,
        l1_regularization_strength=0.01,
        l2_shrinkage_regularization_strength=0.1,
    ),
    "momentum": lambda step: tf.train.MomentumOptimizer(0.1, 0.9),
    "nesterov": lambda step: tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "proximal": lambda step: tf.train.ProximalGradientDescentOptimizer(
        0.1, l1_regularization_strength=0.01
    ),
    "proximal_adagrad": lambda step: tf.train.ProximalAdagradOptimizer(
        0.1, l1_regularization_strength=0.01
    ),
    "rms_prop": lambda step: tf.train.RMSPropOptimizer(0.1, momentum=0.5),
    "sgd": lambda step: tf.train.GradientDescentOptimizer(0.1),
}


def tables(features, is_training):
    """The sum of an example's rows in each optimizer's table."""
    del is_training
    found = [
        tf.gather(variable(name, ROWS, CLASSES, seed=i), features)
        for i, name in enumerate(OPTIMIZERS)
    ]
    return tf.reduce_sum(tf.add_n(found), axis=1)


by_all = each_by_its_own(OPTIMIZERS)


def by_all_in_a_condition(optimizer, loss, step):
    """Applies all optimizers in a condition, from the second step on."""
    both = [
        (OPTIMIZERS[pair[1].op.name](step), pair)
        for pair in optimizer.compute_gradients(loss)
    ]

    def apply():
        return tf.group(*(own.apply_gradients([pair]) for own, pair in both))

    for own, (_, table) in both:
        own._create_slots([table])
        own._prepare()
    applied = tf.cond(step > 0, apply, tf.no_op)
    with tf.control_dependencies([applied]):
        return tf.assign_add(step, 1)


@pytest.mark.parametrize(
    "minimize",
    [slow(by_all), by_all_in_a_condition],
    ids=["by_all", "by_all_in_a_condition"],
)
def test_rows_are_updated_as_in_a_session(tmp_path, minimize):
    rng = np.random.default_rng(0)
    # No batch has all rows, and each has some rows twice.
    x = rng.integers(0, ROWS, (32, 2)).astype("int32")
    data = batches(x, rng.integers(0, CLASSES, 32), steps=4, size=8)
    model_fn = model_fn_of(tables, OPTIMIZERS["sgd"], minimize)
    _, expected = run_in_session(model_fn, data)
    values = trained(model_fn, tmp_path, data)
    assert_same(values, expected)
