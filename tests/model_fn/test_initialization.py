"""Tests initial values from checkpoints whose names may differ."""

import keras
import numpy as np
import pytest
from helpers import batches_of, each_once, estimator_of, regression_data

import keras_tpu_estimator as kte

X, Y = regression_data(examples=16)
RNG = np.random.default_rng(0)
WEIGHTS = {
    "bert/dense/kernel": RNG.normal(size=(3, 2)).astype("float32"),
    "bert/dense/bias": RNG.normal(size=2).astype("float32"),
    "bert/dense/kernel/adam_m": np.zeros((3, 2), "float32"),
    "global_step": np.int64(7),
}


@pytest.fixture(scope="module")
def of_tensorflow(tmp_path_factory):
    """A checkpoint in the format of TF1 scripts."""
    import tensorflow as tf

    path = str(tmp_path_factory.mktemp("tf1") / "bert_model.ckpt")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [
            tf.compat.v1.get_variable(name, initializer=value)
            for name, value in WEIGHTS.items()
        ]
        session.run([variable.initializer for variable in variables])
        tf.compat.v1.train.Saver(variables).save(session, path, write_meta_graph=False)
    return path


@pytest.fixture(scope="module")
def of_ours(tmp_path_factory):
    """The same checkpoint in this package's format."""
    directory = str(tmp_path_factory.mktemp("ours"))
    values = {k: v for k, v in WEIGHTS.items() if k != "global_step"}
    return kte.checkpoints.save(directory, 7, values)


def estimator_starting(
    initialize,
    model_dir,
    in_scaffold=False,
    encoders=("encoder",),
    **settings,
):
    """An estimator of encoders and a head, which then calls `initialize`."""

    def model_fn(features, labels, mode, params):
        hidden = 0.0
        for name in encoders:
            with keras.name_scope(name):
                encoded = keras.layers.Dense(2, name="dense")(features)
                hidden += keras.layers.Dropout(0.1, name="drop")(
                    encoded, training=mode == kte.ModeKeys.TRAIN
                )
        outputs = keras.layers.Dense(1, name="head")(hidden)
        if not in_scaffold:
            initialize()
        scaffold_fn = None
        if in_scaffold:

            def scaffold_fn():
                initialize()
                return kte.Scaffold()

        if mode == kte.ModeKeys.PREDICT:
            return kte.TPUEstimatorSpec(
                mode, predictions={"y": outputs}, scaffold_fn=scaffold_fn
            )
        loss = keras.ops.mean((outputs - labels) ** 2)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.Adam(0.1))
        return kte.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss) if mode == kte.ModeKeys.TRAIN else None,
            scaffold_fn=scaffold_fn,
        )

    return estimator_of(model_fn, model_dir, **settings)


MAPS = {
    "scope": lambda to: {"bert/dense/": f"{to}/dense/"},
    "larger_scope": lambda to: {"bert/": f"{to}/"},
    "names": lambda to: {
        "bert/dense/kernel": f"{to}/dense/kernel",
        "bert/dense/bias": f"{to}/dense/bias:0",
    },
    "pairs": lambda to: [
        ("bert/dense/kernel", f"{to}/dense/kernel"),
        ("bert/dense/bias", f"{to}/dense/bias"),
    ],
}


@pytest.mark.parametrize(
    ("in_scaffold", "source"),
    each_once([False, True], ["of_ours", "of_tensorflow"]),
)
def test_training_starts_from_the_values(source, in_scaffold, tmp_path, request):
    """Training starts from a checkpoint's values, for each form of the map."""
    path = request.getfixturevalue(source)

    def initialize():
        for encoder, map_to in MAPS.items():
            kte.init_from_checkpoint(path, map_to(encoder))

    def estimator():
        return estimator_starting(initialize, tmp_path, in_scaffold, MAPS)

    first = estimator().train(batches_of(X, Y), steps=1)
    start = kte.checkpoints.read(f"{tmp_path}/model.ckpt-0")
    assert start["global_step"] == 0
    for name, value in WEIGHTS.items():
        if name.endswith(("/kernel", "/bias")):
            for encoder in MAPS:
                own = name.replace("bert", encoder)
                np.testing.assert_array_equal(start[own], value, own)
                moved = first.get_variable_value(own)
                assert not np.array_equal(moved, value)
    # The estimator's own checkpoint takes precedence.
    first.train(batches_of(X, Y), steps=1)
    assert first.get_variable_value("global_step") == 2
    again = estimator()
    list(again.predict(batches_of(X)))
    for encoder in MAPS:
        kernel = f"{encoder}/dense/kernel"
        np.testing.assert_array_equal(
            again._context.runtime.values._cached._values[kernel],
            again.get_variable_value(kernel),
        )


@pytest.mark.parametrize("use_tpu", [False, True])
def test_predictions_without_training_use_the_values(of_tensorflow, tmp_path, use_tpu):
    estimator = estimator_starting(
        lambda: kte.init_from_checkpoint(of_tensorflow, {"bert/": "encoder/"}),
        tmp_path,
        use_tpu=use_tpu,
    )
    rows = [row["y"] for row in estimator.predict(batches_of(X))]
    head = estimator._context.runtime.values._cached._values["head/kernel"]
    hidden = X @ WEIGHTS["bert/dense/kernel"] + WEIGHTS["bert/dense/bias"]
    np.testing.assert_allclose(rows, hidden @ head, rtol=1e-4, atol=1e-5)


def test_map_may_contain_a_variable(of_ours, tmp_path):
    def model_fn(features, labels, mode, params):
        layer = keras.layers.Dense(2, name="any")
        loss = keras.ops.mean(layer(features) ** 2)
        kte.init_from_checkpoint(of_ours, {"bert/dense/kernel": layer.kernel})
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        return kte.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

    estimator_of(model_fn, tmp_path).train(batches_of(X, Y), steps=1)
    first = kte.checkpoints.read(f"{tmp_path}/model.ckpt-0")
    np.testing.assert_array_equal(first["any/kernel"], WEIGHTS["bert/dense/kernel"])


def test_moving_average_starts_from_the_same_value(of_ours, tmp_path):
    def model_fn(features, labels, mode, params):
        layer = keras.layers.Dense(2, name="dense")
        loss = keras.ops.mean(layer(features) ** 2)
        kte.init_from_checkpoint(of_ours, {"bert/": "/"})
        averages = kte.ExponentialMovingAverage(0.9)
        optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        return kte.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=[optimizer.minimize(loss), averages.apply()],
        )

    estimator_of(model_fn, tmp_path).train(batches_of(X, Y), steps=1)
    first = kte.checkpoints.read(f"{tmp_path}/model.ckpt-0")
    np.testing.assert_array_equal(
        first["dense/kernel/ExponentialMovingAverage"],
        WEIGHTS["bert/dense/kernel"],
    )


@pytest.mark.parametrize(
    ("assignment", "error", "message"),
    [
        (
            {"bert/dense/scale": "encoder/dense/kernel"},
            ValueError,
            "has no variable 'bert/dense/scale'.*bert/dense/bias",
        ),
        (
            {"bert/dense/kernel": "encoder/kernel"},
            ValueError,
            "'encoder/kernel', .* not exist in the model.*encoder/dense",
        ),
        (
            {"bert/dense/kernel": "head/kernel"},
            ValueError,
            r"'head/kernel' of shape \(2, 1\) from .* of shape \(3, 2\)",
        ),
        (
            {"bert/": "decoder/"},
            ValueError,
            "scope 'decoder/' of the model, .*has no variables",
        ),
        ({"bert/": "encoder"}, ValueError, "end both names with a slash"),
        ({"bert/": 3}, TypeError, "`assignment_map` must map to variables"),
        (["bert/dense/kernel"], TypeError, "`assignment_map` must be a dict"),
    ],
)
def test_mismatched_maps_are_refused(of_ours, assignment, error, message, tmp_path):
    estimator = estimator_starting(
        lambda: kte.init_from_checkpoint(of_ours, assignment), tmp_path / "m"
    )
    with pytest.raises(error, match=message):
        estimator.train(batches_of(X, Y), steps=1)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("in_scaffold", [False, True])
def test_model_starts_from_its_own_checkpoint(tmp_path, in_scaffold):
    first = estimator_starting(lambda: None, tmp_path / "a")
    first.train(batches_of(X, Y), steps=1)
    second = estimator_starting(
        lambda: kte.init_from_checkpoint(first.latest_checkpoint(), {"/": "/"}),
        tmp_path / "b",
        in_scaffold,
    )
    assert second.train(batches_of(X, Y), steps=1).latest_checkpoint()


def test_missing_checkpoint_is_an_error(tmp_path):
    estimator = estimator_starting(
        lambda: kte.init_from_checkpoint(tmp_path / "none", {"/": "/"}),
        tmp_path,
    )
    with pytest.raises(ValueError, match="is not a checkpoint: there is no file"):
        estimator.train(batches_of(X, Y), steps=1)


def test_call_outside_a_model_fn_is_an_error(of_ours):
    with pytest.raises(ValueError, match="was called outside a model_fn"):
        kte.init_from_checkpoint(of_ours, {"/": "/"})
