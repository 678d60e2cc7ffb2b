"""A BERT that classifies sentences."""

import bert_modeling
import bert_optimization
import numpy as np
import tensorflow.compat.v1 as tf

STEPS = 12
BATCH = 16
PARAMS = {"learning_rate": 1e-2, "clip_norm": 1.0, "dropout": 0.0}
LENGTH, CLASSES, HELD_OUT = 10, 3, 56


def create_model(features, params, is_training):
    """Returns the logits, and the loss of each example."""
    config = bert_modeling.TINY._replace(dropout=params["dropout"])
    ids = features["input_ids"]
    bert = bert_modeling.Bert(
        config,
        is_training,
        ids,
        features["input_mask"],
        tf.zeros_like(ids),
        by_one_hot=False,
    )
    x, width = bert.pooled, config.hidden
    weights = tf.get_variable(
        "output_weights", [CLASSES, width], initializer=bert.start
    )
    bias = tf.get_variable("output_bias", [CLASSES], initializer=tf.zeros_initializer())
    with tf.variable_scope("loss"):
        if is_training:
            x = bert_modeling.dropout(x, config.dropout)
        logits = tf.matmul(x, weights, transpose_b=True)
        logits = tf.nn.bias_add(logits, bias)
        log_shares = tf.nn.log_softmax(logits, axis=-1)
        one_hot = tf.one_hot(features["label_ids"], CLASSES, dtype=tf.float32)
        losses = -tf.reduce_sum(one_hot * log_shares, axis=-1)
    return logits, losses


def metric_fn(losses, label_ids, logits, is_real_example):
    """Computes metrics without the examples that pad the last batch."""
    guesses = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return {
        "eval_accuracy": tf.metrics.accuracy(
            labels=label_ids, predictions=guesses, weights=is_real_example
        ),
        "eval_loss": tf.metrics.mean(values=losses, weights=is_real_example),
    }


def model_fn(features, labels, mode, params):
    """Trains and evaluates; the features contain the labels."""
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    logits, losses = create_model(features, params, is_training)
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {"probabilities": tf.nn.softmax(logits, axis=-1)}
        return tf.estimator.tpu.TPUEstimatorSpec(mode, predictions=predictions)
    loss = tf.reduce_mean(losses)
    if mode == tf.estimator.ModeKeys.EVAL:
        is_real = tf.cast(features["is_real_example"], dtype=tf.float32)
        tensors = [losses, features["label_ids"], logits, is_real]
        return tf.estimator.tpu.TPUEstimatorSpec(
            mode=mode, loss=loss, eval_metrics=(metric_fn, tensors)
        )
    train_op = bert_optimization.create_train_op(loss, params, STEPS, 2)
    return tf.estimator.tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def dataset(examples, seed, padding=0):
    """Returns sentences in which most words have the same remainder."""
    rng = np.random.RandomState(seed)
    labels = rng.randint(CLASSES, size=examples + padding)
    words = rng.randint(13, size=(examples + padding, LENGTH)) * CLASSES
    lengths = rng.randint(3, LENGTH + 1, size=(examples + padding, 1))
    is_word = np.arange(LENGTH) < lengths
    is_real = np.arange(examples + padding) < examples
    features = {
        "input_ids": (words + labels[:, None]) * is_word,
        "input_mask": is_word,
        "label_ids": labels,
        "is_real_example": is_real,
    }
    features = {k: v.astype(np.int32) for k, v in features.items()}
    return tf.data.Dataset.from_tensor_slices(features)


def train_input_fn(params):
    """Returns endless batches."""
    data = dataset(STEPS * BATCH, seed=1)
    return data.repeat().batch(params["batch_size"], drop_remainder=True)


def eval_input_fn(params):
    """Returns held-out sentences, padded to complete batches."""
    padding = -HELD_OUT % params["batch_size"]
    data = dataset(HELD_OUT, seed=2, padding=padding)
    return data.batch(params["batch_size"], drop_remainder=True)
