"""Tests loops with growing tensors, which the host runs outside training."""

import keras_tpu_estimator as kte  # isort: skip

import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_golden import golden
from tf1_programs import estimator

from keras_tpu_estimator.tf1.host.host_graph import HostGraph
from keras_tpu_estimator.tf1_tools.tf_estimator import Estimator


@pytest.fixture(scope="module")
def program():
    import growing_loops

    return growing_loops


def test_script_predicts_what_tensorflow_1_predicted(program, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "keras_tpu_estimator"):
        found = program.results(Estimator(program.model_fn, str(tmp_path)))
    assert "on the host, because its tensors change their shapes" in caplog.text
    assert "growing_loops.py:" in caplog.text
    expected = golden("growing_loops")
    assert found["evaluated"] == pytest.approx(expected["evaluated"], rel=1e-5)
    assert found["predicted"]["tokens"] == expected["predicted"]["tokens"]
    for name in ("past", "logits"):
        for row, wanted in zip(
            found["predicted"][name], expected["predicted"][name], strict=True
        ):
            np.testing.assert_allclose(row, wanted, rtol=1e-4, atol=1e-5)


def grown(x, w, rounds=3):
    """Appends the last column of a matrix times a number, repeatedly."""
    _, found = tf.while_loop(
        lambda i, y: i < rounds,
        lambda i, y: (i + 1, tf.concat([y, y[:, -1:] * w], 1)),
        [0, x],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, None])],
    )
    return found


def model_fn(features, labels, mode, params):
    w = tf.get_variable("w", [], initializer=tf.constant_initializer(2.0))
    if mode == kte.ModeKeys.TRAIN:
        step = tf.assign_add(tf.train.get_global_step(), 1)
        return kte.tf1.TPUEstimatorSpec(mode, loss=w, train_op=step)
    alone = grown(tf.ones([features.shape.as_list()[0], 1]), w)
    predictions = {"y": grown(features, w), "alone": alone}
    return kte.tf1.TPUEstimatorSpec(mode, predictions=predictions)


def test_eight_devices_predict_with_the_variables(tmp_path):
    x = np.arange(12, dtype="float32")[:, None]
    made = estimator(model_fn, tmp_path, use_tpu=True)

    def input_fn(params):
        return tf.data.Dataset.from_tensor_slices(x).batch(params["batch_size"])

    made.train(input_fn, steps=1)
    rows = [*made.predict(input_fn)]
    powers = np.array([1.0, 2.0, 4.0, 8.0])
    np.testing.assert_array_equal([row["y"] for row in rows], x * powers)
    np.testing.assert_array_equal([row["alone"] for row in rows], [powers] * 12)


def test_loops_of_different_lengths_on_devices_are_an_error(tmp_path):
    def network(features, labels, mode, params):
        if mode != kte.ModeKeys.PREDICT:
            return model_fn(features, labels, mode, params)
        rounds = tf.cast(features[0, 0], tf.int32)
        return kte.tf1.TPUEstimatorSpec(
            mode, predictions={"y": grown(features, 2.0, rounds)}
        )

    def input_fn(params):
        x = np.arange(16, dtype="float32")[:, None]
        return tf.data.Dataset.from_tensor_slices(x).batch(params["batch_size"])

    made = estimator(network, tmp_path, use_tpu=True)
    made.train(input_fn, steps=1)
    with pytest.raises(ValueError, match="same shape on each device.*use_tpu=False"):
        list(made.predict(input_fn))


def test_two_predictions_on_threads_have_their_own_variables(tmp_path, monkeypatch):
    def counted(features, labels, mode, params):
        w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        if mode == kte.ModeKeys.TRAIN:
            step = tf.assign_add(tf.train.get_global_step(), 1)
            with tf.control_dependencies([tf.assign_add(w, 1.0)]):
                return kte.tf1.TPUEstimatorSpec(mode, loss=w * 1.0, train_op=step)
        return kte.tf1.TPUEstimatorSpec(
            mode, predictions={"y": grown(features, w)[:, 1]}
        )

    def input_fn(params):
        return tf.data.Dataset.from_tensors(np.ones((16, 1), "float32")).repeat(4)

    made = estimator(counted, tmp_path, use_tpu=False)
    for _ in range(2):
        made.train(input_fn, steps=1)
    load = HostGraph.load

    def slowly(self, values):
        load(self, values)
        time.sleep(0.02)

    monkeypatch.setattr(HostGraph, "load", slowly)

    def predicted(step):
        path = os.path.join(tmp_path, f"model.ckpt-{step}")
        return {row["y"] for row in made.predict(input_fn, checkpoint_path=path)}

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(predicted, [1, 2])] == [{1.0}, {2.0}]
