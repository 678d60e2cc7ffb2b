"""Tests names in scopes, and variables that are shared as in TF1."""

import logging
import re

import keras
import numpy as np
import pytest
from helpers import batches_of, estimator_of, model_fn_of, regression_data, repeated
from keras import ops

import keras_tpu_estimator as kte

X, Y = regression_data()
Dense = keras.layers.Dense


def names_of(network, tmp_path, use_tpu=False):
    """The names of a network's variables after a step."""
    estimator = estimator_of(model_fn_of(network), tmp_path, use_tpu)
    estimator.train(repeated(X, Y), steps=1)
    return set(estimator.get_variable_names()) - {
        "global_step",
        "sgd/iteration",
    }


def test_automatic_names_count_in_each_scope(tmp_path) -> None:
    def network(x, is_training):
        with keras.name_scope("a"):
            x = Dense(2, use_bias=False)(x)
            x = Dense(2, use_bias=False)(x)
        with keras.name_scope("b"):
            x = Dense(2, use_bias=False)(x)
            x = x + keras.Variable(1.0)
            with keras.name_scope("a"):
                x = Dense(2, use_bias=False)(x)
        with keras.name_scope("a"):
            x = Dense(2, use_bias=False)(x)
        return Dense(1, use_bias=False)(x)

    assert names_of(network, tmp_path) == {
        "a/dense/kernel",
        "a/dense_1/kernel",
        "a/dense_2/kernel",
        "b/dense/kernel",
        "b/variable",
        "b/a/dense/kernel",
        "dense/kernel",
    }


def test_layer_names_follow_the_scope_of_the_call(tmp_path) -> None:
    def network(x, is_training):
        with keras.name_scope("a"):
            first = Dense(2, use_bias=False)
        second = Dense(1, use_bias=False)
        return second(first(x))

    assert names_of(network, tmp_path) == {"dense/kernel", "dense_1/kernel"}


def test_layers_from_outside_keep_their_names(tmp_path) -> None:
    outside = Dense(2, use_bias=False, name="dense")

    def network(x, is_training):
        with keras.name_scope("a"):
            x = Dense(2, use_bias=False)(x)
        return Dense(1, use_bias=False)(outside(x))

    assert names_of(network, tmp_path) == {
        "a/dense/kernel",
        "dense/kernel",
        "dense_1/kernel",
    }


def shared(x, reuse=kte.AUTO_REUSE, units=1, name="net"):
    with kte.variable_scope(name, reuse=reuse):
        x = Dense(2, activation="relu", kernel_initializer="ones")(x)
        return Dense(units)(x)


def defaulted(x):
    with kte.variable_scope(None, kte.AUTO_REUSE, default_name="net"):
        return Dense(1)(x)


@pytest.mark.parametrize("use_tpu", [False, True])
def test_shared_variables_train_like_a_layer_called_twice(use_tpu, tmp_path) -> None:
    def by_scope(x, is_training):
        return shared(x) - 0.5 * shared(-x)

    def by_layer(x, is_training):
        with keras.name_scope("net"):
            first = Dense(2, activation="relu", kernel_initializer="ones")
            second = Dense(1)
            return second(first(x)) - 0.5 * second(first(-x))

    values = []
    for network in (by_scope, by_layer):
        path = tmp_path / network.__name__
        estimator = estimator_of(model_fn_of(network), path, use_tpu)
        estimator.train(repeated(X, Y), steps=4)
        values.append(kte.checkpoints.read(estimator.latest_checkpoint()))
        result = estimator.evaluate(batches_of(X, Y))
        values[-1]["loss"] = result["loss"]
    one, other = values
    assert one.keys() == other.keys() and "net/dense_1/bias" in one
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-6)


def test_gan_shares_its_discriminator(tmp_path) -> None:
    def model_fn(features, labels, mode, params):
        with kte.variable_scope("generator"):
            made = Dense(3)(features)
        with kte.variable_scope("discriminator"):
            real = ops.mean(Dense(1)(features))
        with kte.variable_scope("discriminator", reuse=True):
            layer = Dense(1)
            fake = ops.mean(layer(made))
        loss = fake - real
        groups = [
            [v for v in kte.trainable_variables() if v.path.startswith(scope)]
            for scope in ("generator/", "discriminator/")
        ]
        # The objects of the second call represent the same variables.
        groups[1] += layer.trainable_variables
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        train_op = [
            optimizer.minimize(-fake, var_list=groups[0]),
            optimizer.minimize(loss, var_list=groups[1]),
        ]
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = estimator_of(model_fn, tmp_path)
    estimator.train(repeated(X, Y), steps=2)
    assert {
        name
        for name in estimator.get_variable_names()
        if name.endswith(("kernel", "bias"))
    } == {
        f"{scope}/dense/{name}"
        for scope in ("generator", "discriminator")
        for name in ("kernel", "bias")
    }


def test_inner_scopes_inherit_reuse(tmp_path) -> None:
    def network(x, is_training):
        def block(x):
            with kte.variable_scope("b"):
                return Dense(3, use_bias=False)(x)

        for _ in range(2):
            with kte.variable_scope("a/c", reuse=kte.AUTO_REUSE):
                x = block(x)
        return Dense(1, use_bias=False)(x)

    assert names_of(network, tmp_path) == {
        "a/c/b/dense/kernel",
        "dense/kernel",
    }


def test_dropout_may_be_shared(tmp_path) -> None:
    def network(x, is_training):
        def part(x, reuse):
            with kte.variable_scope("a", reuse=reuse):
                x = keras.layers.BatchNormalization()(x, training=is_training)
                return keras.layers.Dropout(0.5)(x, training=is_training)

        return Dense(1)(part(x, None) + part(x, True))

    assert "a/batch_normalization/moving_mean" in names_of(network, tmp_path)


@pytest.mark.parametrize(
    ("network", "error", "message"),
    [
        (
            lambda x: shared(x, None) + shared(x, None),
            ValueError,
            "kte.variable_scope",
        ),
        (lambda x: shared(x, True), ValueError, "must have been made before"),
        (
            lambda x: shared(x) + shared(x, units=2),
            ValueError,
            r"shape \(2, 1\). Received: the shape \(2, 2\)",
        ),
        (lambda x: shared(x, "yes"), TypeError, "`reuse` must be True"),
        (lambda x: shared(x, name="/"), ValueError, "`name` must be a path"),
        (lambda x: shared(x, name=None), ValueError, "`name` must be a path"),
        (lambda x: defaulted(x), ValueError, "must have a `name`"),
    ],
)
def test_invalid_sharing_is_refused(network, error, message, tmp_path) -> None:
    estimator = estimator_of(model_fn_of(lambda x, is_training: network(x)), tmp_path)
    with pytest.raises(error, match=message):
        estimator.train(repeated(X, Y), steps=1)


def test_variable_scope_outside_a_model_fn_is_refused() -> None:
    with pytest.raises(ValueError, match="outside a model_fn"):
        with kte.variable_scope("a"):
            raise AssertionError


@pytest.fixture
def pretrained(tmp_path):
    path = tmp_path / "pretrained"
    kte.checkpoints.save(
        path,
        1,
        {
            "bert/dense/kernel": np.ones((3, 2), "float32"),
            "bert/dense/bias": np.ones(2, "float32"),
        },
    )
    return path


@pytest.mark.parametrize(
    ("head", "level", "message"),
    [
        (False, "INFO", "2 of 2 trainable variables"),
        (
            True,
            "WARNING",
            "2 of 4 trainable variables .* The others keep their "
            "initializers: head/bias, head/kernel.",
        ),
    ],
)
def test_initialized_variables_are_counted(
    head, level, message, pretrained, tmp_path, caplog
) -> None:
    def network(x, is_training):
        with keras.name_scope("encoder"):
            x = Dense(2)(x)
        if head:
            x = Dense(1, name="head")(x)
        kte.init_from_checkpoint(pretrained, {"bert/": "encoder/"})
        return x

    estimator = estimator_of(model_fn_of(network), tmp_path / "model")
    with caplog.at_level(logging.INFO, "keras_tpu_estimator"):
        estimator.train(repeated(X, Y), steps=1)
    found = [r for r in caplog.records if "trainable" in r.getMessage()]
    assert [record.levelname for record in found] == [level]
    assert re.search(message, found[0].getMessage())


def test_default_names_are_numbered_as_in_tensorflow(tmp_path) -> None:
    def block(x, name, default_name=None):
        with kte.variable_scope(name, default_name=default_name):
            weight = keras.Variable("ones", (1,), name="w")
            return x * weight

    def network(x, is_training):
        x = block(x, "block_1")
        for _ in range(3):
            x = block(x, None, default_name="block")
        with kte.variable_scope("outer"):
            for _ in range(2):
                x = block(x, None, default_name="block")
        x = block(x, "dense")
        x = block(x, None, default_name="dense")
        x = block(x, "bert/embeddings")
        x = block(x, None, default_name="bert")
        return block(x, "given", default_name="block")

    # From TensorFlow 1.15.
    assert names_of(network, tmp_path) == {
        "block_1/w",
        "block/w",
        "block_2/w",
        "block_3/w",
        "outer/block/w",
        "outer/block_1/w",
        "dense/w",
        "dense_1/w",
        "bert/embeddings/w",
        "bert/w",
        "given/w",
    }


def test_unique_names_restart_in_each_block(tmp_path) -> None:
    def norm(x):
        name = kte.unique_name("LayerNorm")
        return keras.layers.LayerNormalization(center=False, name=name)(x)

    def network(x, is_training):
        for _ in range(2):
            with kte.variable_scope("net", reuse=kte.AUTO_REUSE):
                x = norm(norm(x))
        return norm(x)

    # The names of tf.contrib.layers.layer_norm in TensorFlow 1.15.
    assert names_of(network, tmp_path) == {
        "net/LayerNorm/gamma",
        "net/LayerNorm_1/gamma",
        "LayerNorm/gamma",
    }
