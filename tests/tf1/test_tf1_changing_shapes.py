"""Tests batches that are padded to their longest row, in TF1 scripts."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from helpers import estimator_of
from tf1_programs import values_of, variable

rng = np.random.RandomState(0)
ROWS = [rng.rand(n, 3).astype("float32") for n in rng.randint(2, 12, 24)]
LABELS = [int(row.sum() > len(row) * 1.5) for row in ROWS]
LONGEST = max(map(len, ROWS))


def padded(length=None):
    def input_fn(params):
        def rows():
            for row, label in zip(ROWS, LABELS, strict=True):
                yield {"x": row, "n": len(row)}, label

        shapes = {"x": [None, 3], "n": []}, []
        types = {"x": tf.float32, "n": tf.int32}, tf.int32
        data = tf.data.Dataset.from_generator(rows, types, shapes)
        shapes = {"x": [length, 3], "n": []}, []
        return data.padded_batch(params["batch_size"], shapes)

    return input_fn


def estimator(function, model_dir, use_tpu=False):
    function = kte.tf1.model_fn(function)
    return estimator_of(function, model_dir, use_tpu, batch=8)


def network(features):
    """The mean of the rows that are not padding."""
    x, n = features["x"], features["n"]
    mask = tf.sequence_mask(n, tf.shape(x)[1], tf.float32)[:, :, None]
    hidden = tf.tanh(tf.tensordot(x, variable("kernel", 3, 4), 1)) * mask
    total = tf.reduce_sum(hidden, 1) / tf.cast(n, tf.float32)[:, None]
    return tf.matmul(total, variable("out", 4, 2)), hidden


def model_fn(features, labels, mode, params):
    logits, hidden = network(features)
    if mode == "infer":
        predictions = {"logits": logits, "hidden": hidden}
        return kte.tf1.TPUEstimatorSpec(mode, predictions=predictions)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == "eval" and params["use_tpu"]:
        return kte.tf1.TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(metric_fn, [labels, logits, hidden])
        )
    optimizer = tf.train.AdamOptimizer(0.01)
    if params["use_tpu"]:
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
    return kte.tf1.EstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss, tf.train.get_global_step()),
        eval_metric_ops=(metric_fn(labels, logits, hidden) if mode == "eval" else None),
    )


def metric_fn(labels, logits, hidden):
    return {
        "accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, 1)),
        "hidden": tf.metrics.mean(tf.reduce_sum(hidden, [1, 2])),
    }


@pytest.mark.rows(1)
@pytest.mark.parametrize("use_tpu", [False, True])
def test_each_shape_matches_a_fixed_length(tmp_path, use_tpu):
    one = estimator(model_fn, tmp_path / "one", use_tpu)
    many = estimator(model_fn, tmp_path / "many", use_tpu)
    one.train(padded(LONGEST), steps=3)
    many.train(padded(), steps=3)
    own, others = values_of(many), values_of(one)
    assert own.keys() == others.keys()
    for name, value in own.items():
        np.testing.assert_allclose(value, others[name], rtol=1e-4, atol=1e-6)
    result, wanted = one.evaluate(padded()), one.evaluate(padded(LONGEST))
    assert result == pytest.approx(wanted, rel=1e-5)
    rows, wanted = one.predict(padded()), one.predict(padded(LONGEST))
    for row, other in zip(rows, wanted, strict=True):
        np.testing.assert_allclose(row["logits"], other["logits"], rtol=1e-4)
        length = len(row["hidden"])
        np.testing.assert_allclose(
            row["hidden"], other["hidden"][:length], rtol=1e-4, atol=1e-6
        )


def test_results_match_tensorflow(tmp_path):
    """TensorFlow 1.15.5 has these results after one pass of the same script."""
    made = estimator(model_fn, tmp_path)
    made.train(padded())
    result = made.evaluate(padded())
    expected = {
        "accuracy": 2 / 3,
        "hidden": -0.35121432,
        "loss": 0.6654665,
        "global_step": 3,
    }
    assert result == pytest.approx(expected, rel=1e-5)
    kernel = made.get_variable_value("kernel")
    np.testing.assert_allclose(
        kernel[0],
        [0.0099588381, -0.0675765723, 0.2201180756, 0.0032933755],
        rtol=1e-4,
    )


def flat(features, labels, mode, params):
    x = features["x"]
    w = tf.get_variable("w", [x.shape[1], 1])
    loss = tf.reduce_mean(tf.tensordot(x[:, :, 0], w, 1))
    optimizer = tf.train.AdamOptimizer(0.01)
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return kte.tf1.EstimatorSpec(mode, loss=loss, train_op=train_op)


def test_variables_that_change_size_are_an_error(tmp_path):
    made = estimator(flat, tmp_path)
    with pytest.raises(
        ValueError,
        match=r"'w' has shape \(10, 1\)(.|\n)*must not depend on a dimension",
    ):
        made.train(padded())
