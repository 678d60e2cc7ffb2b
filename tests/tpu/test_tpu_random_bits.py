"""Tests the cost of random numbers on a TPU with its compiler."""

import keras_tpu_estimator as kte  # isort: skip

import keras
import pytest
import tensorflow.compat.v1 as tf  # noqa: TID253 - TF1 scripts import it
from helpers import estimator_of, model_fn_of, regression_data, repeated

DATA = repeated(*regression_data(examples=1024, size=256))


def dropped(features, is_training):
    x = keras.layers.Dense(1024)(features)
    x = keras.layers.Dropout(0.1)(x, training=is_training)
    return keras.layers.Dense(1)(x)


def of_tf1(features, labels, mode, params):
    """The same as a graph."""
    first = tf.get_variable("first", [256, 1024])
    x = tf.nn.dropout(features @ first, rate=0.1)
    y = x @ tf.get_variable("second", [1024, 1])
    loss = tf.reduce_mean((y - labels) ** 2)
    optimizer = tf.tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.1))
    step = tf.train.get_global_step()
    return kte.tf1.TPUEstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(loss, step)
    )


MODEL_FNS = {
    "keras": lambda: model_fn_of(dropped),
    "tf1": lambda: kte.tf1.model_fn(of_tf1),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODEL_FNS)
def test_device_random_bits_take_fewer_cycles(tmp_path, kind):
    def cycles(bits):
        made = estimator_of(
            MODEL_FNS[kind](),
            tmp_path,
            use_tpu=True,
            batch=1024,
            config={"random_bits": bits},
        )
        return made.plan(DATA, "v5e:2x2", print_fn=None).cost.cycles

    found = cycles("rbg"), cycles(None)
    assert found[0] < 0.9 * found[1], found
