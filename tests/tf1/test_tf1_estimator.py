"""Tests inputs and predictions of `tf.estimator.Estimator` with any number of rows."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from keras_tpu_estimator.tf1_tools.tf_estimator.estimators import Estimator

X = np.arange(6, dtype="float32").reshape(6, 1)


def model_fn(features, labels, mode):
    w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
    x = features.get("x", tf.ones([2, 1]))
    x = tf.cast(x, tf.float32)
    if mode == kte.ModeKeys.PREDICT:
        mean = tf.reduce_mean(x + w, 0, keepdims=True)
        return kte.tf1.EstimatorSpec(mode, predictions={"sum": 2 * mean, "mean": mean})
    goal = tf.ones([2, 1]) if labels is None else tf.cast(labels, tf.float32)
    loss = tf.reduce_mean(tf.square(x * w - goal))
    optimizer = tf.train.GradientDescentOptimizer(0.125)
    return kte.tf1.EstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss, tf.train.get_global_step()),
    )


def scalars():
    return tf.data.Dataset.from_tensors(({"x": 3.0, "k": 2.0}, 1.0)).repeat(4)


def lists():
    return {"x": [[1], [2]]}, [[1.0], [2.0]]


def nothing():
    return {}, None


@pytest.mark.parametrize(
    ("input_fn", "steps", "w", "loss"),
    [
        # `w` becomes w - 2 * 0.125 * 3 * (3 * w - 1) in each of four steps.
        (scalars, 4, 1 / 3 * (1 - (-1.25) ** 4), None),
        (lists, 1, 0.625, 0.3515625),
        (nothing, 1, 0.25, 0.5625),
    ],
)
def test_features_need_no_batch_axis(tmp_path, input_fn, steps, w, loss):
    made = Estimator(model_fn, tmp_path)
    made.train(input_fn, steps=steps)
    assert made.get_variable_value("global_step") == steps
    np.testing.assert_allclose(made.get_variable_value("w"), w, rtol=1e-5)
    result = made.evaluate(input_fn, steps=1)
    if loss is not None:
        np.testing.assert_allclose(result["loss"], loss, rtol=1e-5)


def test_python_numbers_have_tensorflow_dtypes(tmp_path):
    found = {}

    def own_model_fn(features, labels, mode):
        given = features if labels is None else {**features, "labels": labels}
        found[mode] = {key: each.dtype.name for key, each in given.items()}
        loss = tf.cast(features["x"], tf.float32)
        return kte.tf1.EstimatorSpec(
            mode,
            predictions=tf.reshape(features["y"], [1]),
            loss=loss,
            train_op=tf.assign_add(tf.train.get_global_step(), 1),
            eval_metric_ops={
                "nothing": (tf.no_op(), tf.no_op()),
                "mean": tf.metrics.mean(loss),
            },
        )

    # Keys need not have the same type.
    features = {"x": 42.0, "y": 43, "z": True, 7: 44}
    made = Estimator(own_model_fn, tmp_path)
    made.train(lambda: (features, 44), steps=1)
    result = made.evaluate(lambda: (features, 44), steps=1)
    assert next(made.predict(lambda: features)) == 43
    dtypes = {"x": "float32", "y": "int32", "z": "bool", 7: "int32"}
    assert found["train"] == found["eval"] == {**dtypes, "labels": "int32"}
    assert found["infer"] == dtypes
    # An operation has no value.
    assert (result["mean"], result["nothing"]) == (42, None)


def test_scalars_are_refused_with_a_batch_size(tmp_path):
    made = kte.TPUEstimator(
        kte.tf1.model_fn(lambda features, labels, mode, params: None),
        tmp_path,
        config=kte.RunConfig(),
        use_tpu=False,
        train_batch_size=2,
    )
    with pytest.raises(ValueError, match="Received only scalars"):
        made.train(lambda params: scalars(), steps=1)


def test_predictions_of_a_batch(tmp_path):
    made = Estimator(model_fn, tmp_path)
    made.train(lists, steps=1)
    w = made.get_variable_value("w")

    def input_fn():
        return tf.data.Dataset.from_tensor_slices({"x": X}).batch(4)

    rows = list(made.predict(input_fn))
    # The mean of a smaller batch is over its rows only.
    expected = [X[:4].mean() + w, X[4:].mean() + w]
    np.testing.assert_allclose([r["mean"][0] for r in rows], expected)
    assert list(rows[0]) == ["sum", "mean"]
    (row, _) = made.predict(input_fn, "sum")
    np.testing.assert_allclose(row["sum"], [2 * expected[0]])
