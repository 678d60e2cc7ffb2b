"""Optimizer state that another optimizer of the same kind continues."""

import keras
import numpy as np
import optax
import pytest
import tensorflow.compat.v1 as tf  # noqa: TID253 - programs of TF1
from helpers import estimator_of, regression_data

import keras_tpu_estimator as kte
from keras_tpu_estimator.files.warm_start.optimizer_state import (
    Meaning,
    owners_by_name,
    states_of,
)

X, Y = regression_data(examples=16)


@pytest.mark.parametrize(
    ("path", "meaning"),
    [
        ("a/w/Adam", Meaning.FIRST),
        ("a/w/Adam_1", Meaning.SECOND),
        ("a/w/adam_m", Meaning.FIRST),
        ("a/w/adam_v", Meaning.SECOND),
        ("a/w/Momentum", Meaning.SUM),
        ("a/w/RMSProp_1", Meaning.STEPS),
        ("a/w/Ftrl_1", Meaning.LINEAR),
        ("a/w/Adagrad", Meaning.SUM_OF_SQUARES),
        ("a/w/Own", "own"),
        ("sgd/a_w_momentum", Meaning.SUM),
        ("mine/a_w_momentum", Meaning.SUM),
        ("lion/a_w_momentum", Meaning.FIRST),
        ("lars/a_w_momentum", Meaning.STEPS),
        ("adam/a_w_velocity", Meaning.SECOND),
        ("adagrad/a_w_accumulator", Meaning.SUM_OF_SQUARES),
        ("optax/mu/a/w", Meaning.FIRST),
        ("optax/0/nu/a/w", Meaning.SECOND),
        ("optax/trace/a/w", Meaning.SUM),
    ],
)
def test_meanings(path, meaning):
    assert [*states_of({path: "a/w"})["a/w"]] == [meaning]


@pytest.mark.parametrize(
    ("paths", "meanings"),
    [
        (["w/RMSProp", "w/RMSProp_1", "w/RMSProp_2"], "second mean steps"),
        (["adam/w_momentum", "adam/w_velocity"], "mean second"),
        (["adamax/w_momentum", "adamax/w_norm"], "mean largest"),
        (["rm_sprop/w_velocity", "rm_sprop/w_momentum"], "second steps"),
    ],
)
def test_meanings_among_others(paths, meanings):
    words = {
        s.path: s.meaning for s in states_of(dict.fromkeys(paths, "w"))["w"].values()
    }
    short = {"second moment": "second", "mean gradient": "mean"}
    short |= {"sum of steps": "steps", "largest gradient": "largest"}
    assert " ".join(short[words[path]] for path in paths) == meanings


def test_owners_have_names_and_shapes():
    shapes = {
        "a/w": (2, 3),
        "a/w/Adam": (2, 3),
        "adam/a_w_velocity": (2, 3),
        "optax/mu/a/w": (2, 3),
        "b/a/w": (2, 3),
        "a/w/Adam_1": (3,),
        "beta1_power": (),
    }
    variables = {path: np.zeros(shape) for path, shape in shapes.items()}
    assert owners_by_name(variables) == {
        "a/w/Adam": "a/w",
        "adam/a_w_velocity": "a/w",
        "optax/mu/a/w": "a/w",
    }


def with_graph(optimizer):
    """Returns a TF1 `model_fn` with an optimizer."""

    def model_fn(features, labels, mode, params):
        with tf.variable_scope("dense"):
            kernel = tf.get_variable("kernel", [3, 1], initializer=tf.zeros_initializer)
            bias = tf.get_variable("bias", [1], initializer=tf.zeros_initializer)
        loss = tf.reduce_mean((tf.matmul(features, kernel) + bias - labels) ** 2)
        train_op = optimizer().minimize(loss, tf.train.get_global_step())
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return kte.tf1.model_fn(model_fn)


def with_keras(optimizer):
    """Returns a `model_fn` with an optimizer of Keras or optax."""

    def model_fn(features, labels, mode, params):
        outputs = keras.layers.Dense(1, name="dense")(features)
        loss = keras.ops.mean((outputs - labels) ** 2)
        train_op = kte.CrossShardOptimizer(optimizer()).minimize(loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def schedule(step):
    return 0.1 / (1 + step)


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.1 / (1 + keras.ops.cast(step, "float32"))


ADAM = {"epsilon": 1e-7}
PAIRS = {
    "Adam": (
        with_graph(lambda: tf.train.AdamOptimizer(0.1, **ADAM)),
        with_keras(lambda: keras.optimizers.Adam(0.1, **ADAM)),
    ),
    "Adam of optax": (
        with_keras(lambda: keras.optimizers.Adam(0.1, **ADAM)),
        with_keras(lambda: optax.adam(0.1, eps=1e-7)),
    ),
    "momentum": (
        with_graph(lambda: tf.train.MomentumOptimizer(0.1, 0.9)),
        with_keras(lambda: keras.optimizers.SGD(0.1, momentum=0.9)),
    ),
    "momentum of optax": (
        with_graph(lambda: tf.train.MomentumOptimizer(0.1, 0.9)),
        with_keras(lambda: optax.sgd(schedule, momentum=0.9)),
    ),
    "RMSProp": (
        with_graph(lambda: tf.train.RMSPropOptimizer(0.1, momentum=0.9, centered=True)),
        with_keras(lambda: keras.optimizers.RMSprop(0.1, momentum=0.9, centered=True)),
    ),
    "Ftrl": (
        with_graph(lambda: tf.train.FtrlOptimizer(0.1)),
        with_keras(lambda: keras.optimizers.Ftrl(0.1)),
    ),
}


def trained(model_fn, model_dir, steps, **settings):
    estimator = estimator_of(model_fn, str(model_dir), **settings)
    estimator.train(lambda params: (X, Y), steps=steps)
    return estimator


@pytest.mark.parametrize("name", PAIRS)
def test_port_continues_a_half_trained_run(name, tmp_path):
    old, new = PAIRS[name]
    trained(old, tmp_path / "old", 3)
    half = str(tmp_path / "old" / "model.ckpt-3")
    settings = kte.WarmStartSettings(half, vars_to_warm_start=[".*"])
    if name == "momentum of optax":
        variables = trained(new, tmp_path / "new", 1, warm_start_from=settings)
        assert variables.get_variable_value("global_step") == 4
        return
    expected = trained(old, tmp_path / "old", 2).get_variable_value("dense/kernel")
    continued = trained(new, tmp_path / "new", 2, warm_start_from=settings)
    assert continued.get_variable_value("global_step") == 5
    kernel = continued.get_variable_value("dense/kernel")
    np.testing.assert_allclose(kernel, expected, rtol=2e-5)
