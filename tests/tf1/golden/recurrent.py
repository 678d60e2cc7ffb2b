"""A network that reads a sequence with a custom loop and with an LSTM."""

import numpy as np
import starting_values
import tensorflow.compat.v1 as tf

STEPS = 12
BATCH = 16
PARAMS = {"learning_rate": 0.02, "keep": 1.0}
WITH_DROPOUT = {"keep": 0.7}
LENGTH, WIDTH, UNITS = 7, 3, 5


def by_own_loop(x, lengths, start):
    """Returns the states of a simple cell, which stop at the end of a sequence."""
    batch = x.shape.as_list()[0]
    with tf.variable_scope("own_cell"):
        kernel = tf.get_variable("kernel", [WIDTH + UNITS, UNITS], initializer=start)
        bias = tf.get_variable("bias", [UNITS], initializer=tf.zeros_initializer())
    inputs = tf.TensorArray(tf.float32, size=LENGTH).unstack(tf.transpose(x, [1, 0, 2]))

    def body(time, state, outputs):
        joined = tf.concat([inputs.read(time), state], axis=1)
        new = tf.tanh(tf.nn.bias_add(tf.matmul(joined, kernel), bias))
        state = tf.where(time < lengths, new, state)
        return time + 1, state, outputs.write(time, state)

    _, state, outputs = tf.while_loop(
        lambda time, state, outputs: time < LENGTH,
        body,
        [
            tf.constant(0),
            tf.zeros([batch, UNITS]),
            tf.TensorArray(tf.float32, size=LENGTH),
        ],
        maximum_iterations=LENGTH,
    )
    return tf.reduce_mean(outputs.stack(), axis=0), state


def by_lstm(x, lengths, params, start, is_training):
    """Returns the last state of TensorFlow's own cell and loop."""
    cell = tf.nn.rnn_cell.LSTMCell(UNITS, initializer=start)
    if is_training and params["keep"] < 1.0:
        cell = tf.nn.rnn_cell.DropoutWrapper(cell, output_keep_prob=params["keep"])
    outputs, state = tf.nn.dynamic_rnn(
        cell, x, sequence_length=lengths, dtype=tf.float32
    )
    return tf.reduce_max(outputs, axis=1), state.h


def model_fn(features, labels, mode, params):
    """A regression on the outputs of both networks."""
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    start = starting_values.Normal(0.4)
    x, lengths = features["x"], features["lengths"]
    states = by_own_loop(x, lengths, start)
    states += by_lstm(x, lengths, params, start, is_training)
    value = tf.layers.dense(
        tf.concat(states, axis=1), 1, kernel_initializer=start, name="value"
    )
    value = tf.squeeze(value, axis=1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.tpu.TPUEstimatorSpec(
            mode=mode, predictions={"value": value}
        )
    loss = tf.losses.mean_squared_error(labels, value)
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.tpu.TPUEstimatorSpec(
            mode=mode, loss=loss, eval_metrics=(metric_fn, [labels, value])
        )
    step = tf.train.get_or_create_global_step()
    rate = tf.train.piecewise_constant(
        step, [4, 8], [params["learning_rate"] / each for each in (1, 2, 4)]
    )
    optimizer = tf.train.RMSPropOptimizer(rate, momentum=0.5)
    if params["use_tpu"]:
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
    pairs = optimizer.compute_gradients(loss)
    doubled = [(2.0 * g if "bias" in v.name else g, v) for g, v in pairs]
    return tf.estimator.tpu.TPUEstimatorSpec(
        mode=mode,
        loss=loss,
        train_op=optimizer.apply_gradients(doubled, global_step=step),
    )


def metric_fn(labels, value):
    """Computes two kinds of errors."""
    return {
        "mae": tf.metrics.mean_absolute_error(labels, value),
        "rmse": tf.metrics.root_mean_squared_error(labels, value),
    }


def dataset(examples, seed):
    """Returns sequences with the sum of their elements before the end."""
    rng = np.random.RandomState(seed)
    x = rng.normal(size=(examples, LENGTH, WIDTH)).astype(np.float32)
    lengths = rng.randint(1, LENGTH + 1, size=examples).astype(np.int32)
    is_seen = np.arange(LENGTH) < lengths[:, None]
    labels = (x[..., 0] * is_seen).sum(axis=1).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(({"x": x, "lengths": lengths}, labels))


def train_input_fn(params):
    """Returns endless batches."""
    data = dataset(STEPS * BATCH, seed=1)
    return data.repeat().batch(params["batch_size"], drop_remainder=True)


def eval_input_fn(params):
    """Returns held-out sequences."""
    data = dataset(4 * BATCH, seed=2)
    return data.batch(params["batch_size"], drop_remainder=True)
