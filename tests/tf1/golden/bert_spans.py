"""A BERT that finds the start and end of an answer in a text."""

import bert_modeling
import bert_optimization
import numpy as np
import tensorflow.compat.v1 as tf

STEPS = 12
BATCH = 16
PARAMS = {"learning_rate": 1e-2, "clip_norm": 1.0, "dropout": 0.0}
LENGTH = 12


def model_fn(features, labels, mode, params):
    """Trains on two logits for each word."""
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    config = bert_modeling.TINY._replace(dropout=params["dropout"])
    bert = bert_modeling.Bert(
        config,
        is_training,
        features["input_ids"],
        features["input_mask"],
        features["segment_ids"],
        by_one_hot=False,
    )
    batch, length, width = bert.sequence.shape.as_list()
    weights = tf.get_variable(
        "cls/squad/output_weights", [2, width], initializer=bert.start
    )
    bias = tf.get_variable(
        "cls/squad/output_bias", [2], initializer=tf.zeros_initializer()
    )
    flat = tf.reshape(bert.sequence, [batch * length, width])
    logits = tf.nn.bias_add(tf.matmul(flat, weights, transpose_b=True), bias)
    logits = tf.transpose(tf.reshape(logits, [batch, length, 2]), [2, 0, 1])
    starts, ends = tf.unstack(logits, axis=0)
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {
            "unique_ids": features["unique_ids"],
            "start_logits": starts,
            "end_logits": ends,
        }
        return tf.estimator.tpu.TPUEstimatorSpec(mode=mode, predictions=predictions)
    loss = (
        loss_of(starts, features["start_positions"])
        + loss_of(ends, features["end_positions"])
    ) / 2.0
    if mode == tf.estimator.ModeKeys.EVAL:
        tensors = {
            "starts": tf.argmax(starts, -1, output_type=tf.int32),
            "ends": tf.argmax(ends, -1, output_type=tf.int32),
            "true_starts": features["start_positions"],
            "true_ends": features["end_positions"],
        }
        return tf.estimator.tpu.TPUEstimatorSpec(
            mode=mode, loss=loss, eval_metrics=(metric_fn, tensors)
        )
    train_op = bert_optimization.create_train_op(loss, params, STEPS, 2)
    return tf.estimator.tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def loss_of(logits, positions):
    """Returns the loss of the correct position."""
    one_hot = tf.one_hot(positions, depth=LENGTH, dtype=tf.float32)
    log_shares = tf.nn.log_softmax(logits, axis=-1)
    return -tf.reduce_mean(tf.reduce_sum(one_hot * log_shares, axis=-1))


def metric_fn(starts, ends, true_starts, true_ends):
    """Computes metrics from named tensors."""
    is_exact = tf.logical_and(tf.equal(starts, true_starts), tf.equal(ends, true_ends))
    return {
        "exact": tf.metrics.mean(tf.cast(is_exact, tf.float32)),
        "start_distance": tf.metrics.mean_absolute_error(true_starts, starts),
    }


def dataset(examples, seed):
    """Returns texts with the answer between the two words of the question."""
    rng = np.random.RandomState(seed)
    ids = rng.randint(10, 40, size=(examples, LENGTH))
    starts = rng.randint(3, LENGTH - 3, size=examples)
    ends = starts + rng.randint(1, 3, size=examples)
    ids[np.arange(examples), starts] = 5
    ids[np.arange(examples), ends] = 6
    ids[:, :3] = [1, 5, 6]
    features = {
        "unique_ids": 1000 + np.arange(examples),
        "input_ids": ids,
        "input_mask": np.ones_like(ids),
        "segment_ids": np.broadcast_to(np.arange(LENGTH) >= 3, ids.shape),
        "start_positions": starts,
        "end_positions": ends,
    }
    features = {k: v.astype(np.int32) for k, v in features.items()}
    return tf.data.Dataset.from_tensor_slices(features)


def train_input_fn(params):
    """Returns endless batches."""
    data = dataset(STEPS * BATCH, seed=1)
    return data.repeat().batch(params["batch_size"], drop_remainder=True)


def eval_input_fn(params):
    """Returns held-out questions."""
    data = dataset(4 * BATCH, seed=2)
    return data.batch(params["batch_size"], drop_remainder=True)
