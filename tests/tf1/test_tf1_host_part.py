"""Tests strings, tables and sparse tensors that the host computes."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_golden import golden
from tf1_programs import estimator, summaries_in

from keras_tpu_estimator.tf1.host import preprocessing
from keras_tpu_estimator.tf1_tools.tf_estimator import Estimator, RunConfig


@pytest.fixture(scope="module")
def program():
    import host_part

    return host_part


def test_script_matches_tensorflow_1(program, tmp_path):
    found = program.results(Estimator(program.model_fn, str(tmp_path)))
    expected = golden("host_part")
    logits = [each["predicted"].pop("logits") for each in (found, expected)]
    np.testing.assert_allclose(*logits, rtol=1e-4)
    assert found["predicted"] == expected["predicted"]
    assert found["evaluated"] == pytest.approx(expected["evaluated"], rel=1e-5)
    assert found["variables"].keys() == expected["variables"].keys()
    for name, value in expected["variables"].items():
        np.testing.assert_allclose(
            found["variables"][name], value, rtol=1e-4, atol=1e-5, err_msg=name
        )


WORDS = np.array(["a", "bb", "", "zzz"] * 7)


def words_input_fn(params):
    """A batch, and a batch with fewer examples."""
    data = tf.data.Dataset.from_tensor_slices((WORDS, np.ones(28, "float32")))
    return data.batch(params["batch_size"])


def words_model_fn(features, labels, mode, params):
    w = tf.get_variable("w", [], initializer=tf.ones_initializer())
    y = w * tf.cast(tf.strings.length(features), tf.float32)
    tags = tf.gather(tf.constant(["short", "long"]), tf.cast(y > 1, tf.int32))
    if mode == kte.ModeKeys.PREDICT:
        both = tf.strings.join([features, tags], "/")
        return kte.tf1.TPUEstimatorSpec(mode, predictions={"y": y, "both": both})

    def metric_fn(words, tags):
        length = tf.cast(tf.strings.length(tf.strings.join([words, tags])), "float32")
        return {"length": tf.metrics.mean(length)}

    loss = tf.reduce_mean(tf.square(y - labels))
    if mode == kte.ModeKeys.EVAL:
        metrics = metric_fn, [features, tags]
        return kte.tf1.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)

    def host_call(step, words, tags):
        return tf.print(words, tags)

    step = tf.reshape(tf.train.get_global_step(), [1])
    optimizer = tf.tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.01))
    return kte.tf1.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss, tf.train.get_global_step()),
        host_call=(host_call, [step, features, tags]),
    )


def test_strings_are_equal_on_one_and_eight_devices(tmp_path):
    found = []
    for use_tpu in (False, True):
        made = estimator(words_model_fn, tmp_path / str(use_tpu), use_tpu=use_tpu)
        made.train(words_input_fn, steps=1)
        rows = [*made.predict(words_input_fn)]
        length = made.evaluate(words_input_fn)["length"]
        found.append(([each["y"] for each in rows], length))
        assert [each["both"] for each in rows] == (
            [b"a/short", b"bb/long", b"/short", b"zzz/long"] * 7
        )
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-6)
    assert found[0][1] == found[1][1] == 6.0


def test_bytes_of_strings_have_one_length():
    strings = np.array([b"a", b"bc"], object)
    made = preprocessing.as_bytes(strings)
    assert made.shape == preprocessing.as_bytes(strings[::-1] * 3).shape == (2, 20)
    assert [*preprocessing.from_bytes(made)] == [*strings]


def summarizing_model_fn(features, labels, mode, params):
    w = tf.get_variable("w", [], initializer=tf.constant_initializer(0.5))
    x = w * tf.cast(tf.strings.length(features["word"]), tf.float32)
    loss = tf.reduce_mean(tf.square(x - 1.0))
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["no", "yes"], [0, 1]), -1
    )
    accuracy = tf.metrics.accuracy(table.lookup(labels), x > 0.8, features["n"])
    tf.summary.scalar("accuracy", accuracy[1])
    tf.summary.scalar("longest", tf.reduce_max(tf.strings.length(labels)))
    optimizer = tf.train.GradientDescentOptimizer(0.01)
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return kte.tf1.EstimatorSpec(mode, loss=loss, train_op=train_op)


def test_host_computes_strings_of_summaries(tmp_path):
    def input_fn():
        features = {"word": ["a", "bb", "", "zzz"], "n": [1, 0, 1, 1]}
        labels = ["no", "no", "yes", "yes"]
        return tf.data.Dataset.from_tensor_slices((features, labels)).batch(2)

    config = RunConfig(save_summary_steps=1)
    Estimator(summarizing_model_fn, str(tmp_path), config).train(input_fn)
    found = summaries_in(tmp_path)
    # The values of TensorFlow 1.15.5.
    assert found["accuracy_1", 1] == 1.0
    assert found["accuracy_1", 2] == pytest.approx(2 / 3)
    assert found["longest", 1] == 2.0
    assert found["longest", 2] == 3.0


def test_host_computes_what_has_no_fixed_size_before_its_part(tmp_path):
    def model_fn(features, labels, mode):
        w = tf.get_variable("w", [], initializer=tf.constant_initializer(0.5))
        y = features * w
        kept = tf.boolean_mask(y * 2.0, y[:, 0] > 1.0)
        words = tf.strings.length(tf.as_string(kept[:, 1]))
        loss = tf.reduce_mean(tf.square(y))
        optimizer = tf.train.GradientDescentOptimizer(0.00001)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        metrics = {
            "words": tf.metrics.mean(words),
            "kept": tf.metrics.mean(kept * w),
            "y": tf.metrics.mean(y),
        }
        return kte.tf1.EstimatorSpec(
            mode, loss=loss, train_op=train_op, eval_metric_ops=metrics
        )

    def input_fn():
        x = np.arange(16, dtype="float32").reshape(8, 2) ** 2
        return tf.data.Dataset.from_tensor_slices((x, x)).batch(4)

    made = Estimator(model_fn, str(tmp_path))
    made.train(input_fn, steps=1)
    # The values of TensorFlow 1.15.5.
    assert made.evaluate(input_fn) == pytest.approx(
        {
            "kept": 43.221485,
            "loss": 2721.366,
            "words": 9.285714,
            "y": 38.297012,
            "global_step": 1,
        }
    )
