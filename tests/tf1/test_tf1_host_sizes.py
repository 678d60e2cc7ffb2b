"""Tests sizes that depend on values of the input, such as the longest row."""

import keras_tpu_estimator as kte  # isort: skip

import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import estimator, fed

from keras_tpu_estimator.tf1.host.host_sizes import as_shape, from_shape
from keras_tpu_estimator.tf1_tools.tf_estimator import Estimator

LENGTHS = [3, 1, 2, 5, 4, 2, 2, 1]


def rows_input_fn(has_words):
    """Two batches, padded to their longest rows."""

    def rows():
        rng = np.random.RandomState(0)
        for n in LENGTHS:
            yield {"x": rng.rand(n, 3).astype("f"), "n": n, "w": "abc"}, n % 2

    def input_fn():
        types = {"x": tf.float32, "n": tf.int32, "w": tf.string}, tf.int32
        shapes = {"x": [None, 3], "n": [], "w": []}, []
        data = tf.data.Dataset.from_generator(rows, types, shapes)
        data = data.padded_batch(4, shapes)
        if has_words:
            return data
        return data.map(lambda f, label: ({"x": f["x"], "n": f["n"]}, label))

    return input_fn


def rows_model_fn(features, labels, mode, params):
    x, n = features["x"], features["n"]
    start = tf.constant_initializer(0.5)
    hidden = tf.tensordot(x, tf.get_variable("kernel", [3, 2], initializer=start), 1)
    hidden += tf.get_variable("bias", [2], initializer=tf.zeros_initializer())
    mask = tf.sequence_mask(n, dtype=tf.float32)
    if params["slices"]:
        size = tf.reduce_max(n) - 1
        hidden, mask = hidden[:, :size], mask[:, :size]
        hidden = tf.reshape(hidden, tf.stack([-1, size, 2]))
    logits = tf.reduce_sum(hidden * mask[:, :, None], 1)
    if mode == "infer":
        return kte.tf1.EstimatorSpec(mode, {"logits": logits, "mask": mask})
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    return kte.tf1.EstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss, tf.train.get_global_step()),
        eval_metric_ops={"mask": tf.metrics.mean(mask)},
    )


# Results of TensorFlow 1.15.5: loss, mean of the mask, kernel, logits of row 7.
MASKED = 0.70242494, 0.5555556, [0.5232695, 0.47673053], [1.3760154, 1.1762993]
SLICED = 0.6933324, 0.64285713, [0.50789106, 0.492109], [1.331077, 1.221237]


@pytest.mark.parametrize(
    ("has_words", "slices", "expected"),
    [(True, False, MASKED), (False, True, SLICED)],
)
def test_masks_up_to_the_longest_row_match_tensorflow_1(
    tmp_path, has_words, slices, expected
):
    made = Estimator(rows_model_fn, str(tmp_path), params={"slices": slices})
    input_fn = rows_input_fn(has_words)
    made.train(input_fn)
    loss, mask, kernel, logits = expected
    result = made.evaluate(input_fn)
    assert result["loss"] == pytest.approx(loss, rel=1e-5)
    assert result["mask"] == pytest.approx(mask, rel=1e-5)
    found = made.get_variable_value("kernel")[0]
    np.testing.assert_allclose(found, kernel, rtol=1e-5)
    rows = [*made.predict(input_fn)]
    np.testing.assert_allclose(rows[6]["logits"], logits, rtol=1e-5)
    longest = np.repeat([5, 4], 4) - slices
    expected = np.minimum(LENGTHS, longest).tolist()
    assert [row["mask"].sum() for row in rows] == expected


X = np.random.RandomState(0).rand(4, 6, 3).astype("float32")
N = np.array([3, 1, 2, 2], "int32")
# Functions of tensors and a size, and the means in TensorFlow 1.15.5.
SIZES = {
    "fill": (lambda y, m: y * tf.reduce_sum(tf.fill([m], 2.0)), 2.9926007),
    "tile": (lambda y, m: tf.reduce_sum(tf.tile(y[:, :1], [1, m, 1])), 23.068878),
    "reshape": (lambda y, m: tf.reshape(y, [m, -1])[0], 0.61045337),
    "one_hot": (lambda y, m: y[:, 0, :] * tf.one_hot(N, m), 0.20557237),
    "pad": (lambda y, m: tf.pad(y, [[0, 0], [0, m], [0, 0]]), 0.3325112),
    "split": (lambda y, m: tf.split(y, [m, 6 - m], 1)[0], 0.5370134),
    "top_k": (lambda y, m: tf.nn.top_k(y[:, :, 0], m)[0], 0.6264147),
    "segments": (lambda y, m: tf.unsorted_segment_sum(y, N, m + 1), 0.49876678),
}


def test_operations_whose_sizes_xla_must_know(tmp_path):
    def model_fn(features, labels, mode, params):
        w = tf.get_variable("w", [], initializer=tf.ones_initializer())
        m = tf.reduce_max(features["n"])
        means = {
            name: tf.reduce_mean(function(features["x"] * w, m))
            for name, (function, _) in SIZES.items()
        }
        loss = sum(means.values())
        optimizer = tf.train.GradientDescentOptimizer(0.001)
        step = tf.train.get_global_step()
        return kte.tf1.EstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss, step),
            eval_metric_ops={n: tf.metrics.mean(mean) for n, mean in means.items()},
        )

    made = Estimator(model_fn, str(tmp_path), params={})
    found = made.evaluate(fed([{"x": X, "n": N}]))
    expected = {name: mean for name, (_, mean) in SIZES.items()}
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    made.train(fed([{"x": X, "n": N}]), steps=1)
    w = made.get_variable_value("w")
    assert w == pytest.approx(1 - 0.001 * sum(expected.values()), rel=1e-5)


def summing_model_fn(features, labels, mode, params):
    mask = tf.sequence_mask(features)
    return kte.tf1.TPUEstimatorSpec(mode, predictions={"mask": mask})


def test_devices_need_the_same_sizes(tmp_path):
    made = estimator(summing_model_fn, tmp_path, use_tpu=True)
    n = np.array([1, 3] * 8, "int32")
    rows = [*made.predict(fed([n]))]
    assert [row["mask"].tolist() for row in rows[:2]] == (
        [[True, False, False], [True, True, True]]
    )
    n[0] = 4
    with pytest.raises(ValueError, match=r"same on each device(.|\n)*Range"):
        [*made.predict(fed([n]))]


@pytest.mark.parametrize("values", [5, [7, -1, 0], [[0, 2], [-3, 1]]])
def test_shapes_hold_integers(values):
    array = np.asarray(values, "int32")
    like = tf.TensorSpec([*array.shape[:1], *[None] * (array.ndim - 1)], "int32")
    np.testing.assert_array_equal(from_shape(as_shape(array).shape, like), array)


def fixed_input_fn():
    """Batches of one shape, which a dataset can stack."""
    lengths = np.array([[each % 3 + 1, 2] for each in range(6)])
    return tf.data.Dataset.from_tensor_slices((lengths, np.ones([6, 2, 1], "f")))


def fixed_model_fn(features, labels, mode):
    mask = tf.cast(tf.sequence_mask(features), tf.float32)
    w = tf.get_variable("w", [1], initializer=tf.ones_initializer())
    y = tf.reduce_sum(mask, 1, keepdims=True) * w
    if mode == "infer":
        return kte.tf1.EstimatorSpec(mode, {"y": y})
    loss = tf.reduce_mean((y - labels) ** 2)
    optimizer = tf.train.GradientDescentOptimizer(0.01)
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return kte.tf1.EstimatorSpec(mode, loss=loss, train_op=train_op)


def test_batches_of_one_shape_may_have_different_sizes(tmp_path):
    made = Estimator(fixed_model_fn, tmp_path)
    made.train(fixed_input_fn, steps=4)
    # Results of TensorFlow 1.15.5.
    assert made.get_variable_value("w") == pytest.approx(0.8557324)
    assert made.evaluate(fixed_input_fn)["loss"] == pytest.approx(0.7502747)
    rows = [row["y"][0] for row in made.predict(fixed_input_fn)]
    assert rows == pytest.approx([0.8557324 * n for n in (1, 2, 2, 2, 3, 2) * 2])
    made.train(fixed_input_fn, steps=2)
    assert made.get_variable_value("w") == pytest.approx(0.8155101)


def test_later_shapes_cannot_be_the_first_to_need_the_host(tmp_path):
    def model_fn(features, labels, mode):
        size = features.shape.as_list()[1]
        if size > 2:
            size = tf.shape(tf.sequence_mask(features))[-1]
        return kte.tf1.EstimatorSpec(mode, {"y": features + tf.range(size)[:1]})

    def input_fn():
        shape = [None, None]
        rows = [np.ones([2, size], "int32") for size in (1, 1, 3)]
        return tf.data.Dataset.from_generator(lambda: iter(rows), tf.int32, shape)

    predictions = Estimator(model_fn, tmp_path).predict(input_fn)
    next(predictions)
    time.sleep(0.1)  # All batches are read.
    # The results of earlier batches come first.
    assert [next(predictions)["y"].shape for _ in range(3)] == [(1,)] * 3
    with pytest.raises(ValueError, match="batches of another shape than the first"):
        next(predictions)
