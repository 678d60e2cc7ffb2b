"""Ports that `compare` proves, without a hand."""

import pathlib

import pytest

from keras_tpu_estimator.__main__ import main

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
PROGRAM = """
import numpy as np
import tensorflow as tf


def network(features, is_training):
    with tf.variable_scope("network"):
        x = tf.layers.dense(features["x"], 8, activation=tf.nn.relu, name="hidden")
        x = tf.layers.batch_normalization(x, training=is_training)
        x = tf.layers.dropout(x, 0.2, training=is_training)
        w = tf.get_variable("w", [8, 3], initializer=tf.glorot_uniform_initializer())
        return tf.matmul(x, w)


def model_fn(features, labels, mode, params):
    logits = network(features, mode == tf.estimator.ModeKeys.TRAIN)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    decay = tf.add_n(
        [tf.nn.l2_loss(v) for v in tf.trainable_variables() if "bias" not in v.name]
    )
    loss += 1e-3 * decay
    step = tf.train.get_or_create_global_step()
    rate = tf.train.exponential_decay(0.1, step, 2, 0.5)
    optimizer = tf.contrib.tpu.CrossShardOptimizer(
        tf.train.OPTIMIZER
    )
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        gradients, variables = zip(*optimizer.compute_gradients(loss))
        gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
        train_op = optimizer.apply_gradients(zip(gradients, variables), step)
    return tf.contrib.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn(params):
    rng = np.random.RandomState(0)
    x = rng.normal(size=[64, 5]).astype(np.float32)
    y = rng.randint(3, size=[64]).astype(np.int32)
    dataset = tf.data.Dataset.from_tensor_slices(({"x": x}, y)).repeat()
    return dataset.batch(params["batch_size"], drop_remainder=True)


def main(_):
    config = tf.contrib.tpu.RunConfig(tf_random_seed=1)
    estimator = tf.contrib.tpu.TPUEstimator(
        model_fn, config=config, use_tpu=True, train_batch_size=16
    )
    estimator.train(input_fn, max_steps=6)


if __name__ == "__main__":
    tf.app.run()
"""


@pytest.mark.rows(1)
@pytest.mark.parametrize(
    "optimizer",
    ["MomentumOptimizer(rate, 0.9)", "RMSPropOptimizer(rate, momentum=0.9)"],
)
def test_port_is_proved(tmp_path, capsys, optimizer: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.replace("OPTIMIZER", optimizer))
    status = main(["port", str(path), "--to", str(tmp_path / "new"), "--prove"])
    output = capsys.readouterr().out
    assert "are one" in output, output
    assert status == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tf1_mnist.py", "tf1_bert_tiny.py"])
def test_ports_of_examples_are_proved(tmp_path, name: str) -> None:
    arguments = ["port", str(EXAMPLES / name), "--to", str(tmp_path), "--prove"]
    assert main([*arguments, "--use_tpu"]) == 0
