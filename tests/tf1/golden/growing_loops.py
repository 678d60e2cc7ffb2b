"""A script that predicts by a loop with growing tensors, like text samplers.

    tf115/bin/python tests/tf1/golden/growing_loops.py

writes `growing_loops.json`. `make_contrib.py` shows how to install TensorFlow 1.15.5.
"""

import numpy as np
import tensorflow.compat.v1 as tf
from running import write_golden

WORDS, WIDTH, LENGTH = 7, 3, 4
X = np.random.RandomState(0).randint(0, WORDS, size=(6, 3)).astype("int32")
Y = np.arange(6).astype("int32") % WORDS


def start(*shape):
    """Returns an initializer that does not depend on the graph."""
    values = np.random.RandomState(sum(shape)).normal(size=shape)
    return tf.constant_initializer(values.astype("float32"))


def next_logits(tokens, past):
    """Returns the logits of the next token, and the past with one more row."""
    words = tf.get_variable("words", [WORDS, WIDTH], initializer=start(WORDS, WIDTH))
    kernel = tf.get_variable("kernel", [WIDTH, WORDS], initializer=start(WIDTH, WORDS))
    hidden = tf.reduce_mean(tf.nn.embedding_lookup(words, tokens), 1)
    past = tf.concat([past, hidden[:, None]], axis=1)
    return tf.matmul(tf.reduce_sum(past, 1), kernel), past


def sampled(tokens, past):
    """Samples tokens until all rows contain an end token."""

    def step(tokens, past):
        with tf.variable_scope("model", reuse=tf.AUTO_REUSE):
            logits, past = next_logits(tokens, past)
        best = tf.argmax(logits, 1, output_type=tf.int32)
        return [tf.concat([tokens, best[:, None]], axis=1), past]

    return tf.while_loop(
        lambda tokens, past: tf.reduce_any(tf.not_equal(tokens[:, -1], 0)),
        step,
        [tokens, past],
        shape_invariants=[
            tf.TensorShape([None, None]),
            tf.TensorShape([None, None, WIDTH]),
        ],
        maximum_iterations=LENGTH,
        back_prop=False,
    )


def model_fn(features, labels, mode, params):
    """Predicts with a language model."""
    rows = tf.shape(features)[0]
    with tf.variable_scope("model", reuse=tf.AUTO_REUSE):
        logits, past = next_logits(features, tf.zeros([rows, 0, WIDTH]))
    if mode == tf.estimator.ModeKeys.TRAIN:
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        optimizer = tf.train.GradientDescentOptimizer(0.5)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)
    tokens, past = sampled(features, past)
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {"tokens": tokens, "past": past, "logits": logits}
        return tf.estimator.EstimatorSpec(mode, predictions=predictions)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    metrics = {"last": tf.metrics.mean(past[:, -1])}
    return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)


def input_fn(params=None):
    """Yields two batches."""
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(3)


def results(estimator):
    """Returns the results of an estimator, as JSON values."""
    estimator.train(lambda: input_fn().repeat(), steps=4)
    predicted = [*estimator.predict(input_fn)]
    evaluated = estimator.evaluate(input_fn)
    return {
        "evaluated": {n: float(value) for n, value in evaluated.items()},
        "predicted": {k: [r[k].tolist() for r in predicted] for k in predicted[0]},
    }


if __name__ == "__main__":
    write_golden("growing_loops", results)
