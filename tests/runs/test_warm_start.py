"""Estimators that start from another model's checkpoint."""

import logging

import keras
import numpy as np
import pytest
from helpers import batches_of, estimator_of, regression_data, repeated

import keras_tpu_estimator as kte

X, Y = regression_data(examples=32)
KERNEL = np.array([[1.0], [2.0], [3.0]], "float32")
OLD = {
    "dense/kernel": KERNEL,
    "dense/bias": np.array([4.0], "float32"),
    "adam/dense_kernel_momentum": np.full((3, 1), 0.5, "float32"),
    "global_step": np.int64(40),
}


@pytest.fixture(scope="module")
def of_ours(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("ours"))
    values = {k: v for k, v in OLD.items() if k != "global_step"}
    return kte.checkpoints.save(directory, 40, values)


@pytest.fixture(scope="module")
def of_tensorflow(tmp_path_factory):
    """The same checkpoint in the format of TF1 scripts."""
    import tensorflow as tf

    path = str(tmp_path_factory.mktemp("tf1") / "model.ckpt")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [
            tf.compat.v1.get_variable(name, initializer=value)
            for name, value in OLD.items()
        ]
        session.run([variable.initializer for variable in variables])
        saver = tf.compat.v1.train.Saver(variables)
        return saver.save(session, path, write_meta_graph=False)


def starting_from(warm_start_from, model_dir, name="dense", **settings):
    def model_fn(features, labels, mode, params):
        outputs = keras.layers.Dense(1, name=name)(features)
        outputs = keras.layers.Dropout(0.1)(outputs)
        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(mode, predictions={"y": outputs})
        loss = keras.ops.mean((outputs - labels) ** 2)
        train_op = None
        if mode == kte.ModeKeys.TRAIN:
            optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(0.1))
            train_op = optimizer.minimize(loss)
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return estimator_of(
        model_fn, model_dir, warm_start_from=warm_start_from, **settings
    )


def first_values(model_dir, step=0):
    return kte.checkpoints.read(f"{model_dir}/model.ckpt-{step}")


@pytest.mark.parametrize("use_tpu", [False, True])
@pytest.mark.parametrize("source", ["of_ours", "of_tensorflow"])
def test_path_initializes_all_trainable_variables(
    source, use_tpu, tmp_path, request, caplog
):
    path = request.getfixturevalue(source)
    estimator = starting_from(path, tmp_path, use_tpu=use_tpu)
    with caplog.at_level(logging.INFO, "keras_tpu_estimator"):
        estimator.train(repeated(X, Y), steps=1)
    first = first_values(tmp_path)
    np.testing.assert_array_equal(first["dense/kernel"], KERNEL)
    assert first["dense/bias"] == 4.0
    assert not first["adam/dense_kernel_momentum"].any()
    assert "2 matched, 0 missing" in caplog.text


def test_evaluation_and_prediction_use_the_warm_start(of_ours, tmp_path):
    estimator = starting_from(of_ours, tmp_path)
    expected = X @ KERNEL + 4.0
    rows = [row["y"] for row in estimator.predict(batches_of(X))]
    np.testing.assert_allclose(rows, expected, rtol=1e-5)
    loss = estimator.evaluate(batches_of(X, Y))["loss"]
    np.testing.assert_allclose(loss, np.mean((expected - Y) ** 2), rtol=1e-4)
    estimator.train(repeated(X, Y), steps=1)
    np.testing.assert_array_equal(first_values(tmp_path)["dense/kernel"], KERNEL)


def test_own_checkpoint_takes_precedence(of_ours, tmp_path):
    starting_from(of_ours, tmp_path).train(repeated(X, Y), steps=2)
    again = starting_from("/nowhere/model.ckpt", tmp_path)
    trained = again.get_variable_value("dense/kernel")
    again.train(repeated(X, Y), steps=1)
    assert again.get_variable_value("global_step") == 3
    assert not np.array_equal(trained, KERNEL)


def test_list_selects_from_all_variables(of_ours, tmp_path):
    settings = kte.WarmStartSettings(
        of_ours,
        vars_to_warm_start=[
            "dense/",
            "adam/dense_kernel_momentum",
            "global_step",
        ],
    )
    estimator = starting_from(settings, tmp_path)
    estimator.train(repeated(X, Y), steps=1)
    first = first_values(tmp_path, step=40)
    np.testing.assert_array_equal(first["adam/dense_kernel_momentum"], 0.5)
    assert estimator.get_variable_value("global_step") == 41


def test_names_may_differ(of_tensorflow, tmp_path):
    settings = kte.WarmStartSettings(
        of_tensorflow,
        vars_to_warm_start="head/kernel",
        var_name_to_prev_var_name={"head/kernel": "dense/kernel"},
    )
    estimator = starting_from(settings, tmp_path, name="head")
    estimator.train(repeated(X, Y), steps=1)
    first = first_values(tmp_path)
    np.testing.assert_array_equal(first["head/kernel"], KERNEL)
    assert first["head/bias"] == 0.0


def test_missing_variable_is_reported(of_ours, tmp_path):
    estimator = starting_from(of_ours, tmp_path / "new", name="head")
    with pytest.raises(ValueError, match="(?s)2 missing.*head/bias"):
        estimator.train(repeated(X, Y), steps=1)
    assert not (tmp_path / "new").exists()
