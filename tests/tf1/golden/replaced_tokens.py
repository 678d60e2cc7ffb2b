"""An ELECTRA model: a discriminator finds the words that a generator replaced."""

import bert_modeling
import bert_optimization
import numpy as np
import starting_values
import tensorflow.compat.v1 as tf

STEPS = 12
BATCH = 16
PARAMS = {"learning_rate": 1e-2, "clip_norm": 1.0, "dropout": 0.0}
LENGTH, MASKED = 10, 2
MASK = 1
CONFIG = bert_modeling.TINY


def sample(logits, noise):
    """Samples words by the Gumbel trick, without a gradient."""
    drawn = tf.argmax(tf.nn.softmax(logits + noise), -1, output_type=tf.int32)
    return tf.stop_gradient(drawn)


def scattered(ids, positions, new):
    """Replaces the ids at some positions."""
    batch, length = ids.shape.as_list()
    rows = tf.expand_dims(tf.range(batch, dtype=tf.int32) * length, 1)
    places = tf.reshape(positions + rows, [-1, 1])
    updates = tf.scatter_nd(places, tf.reshape(new, [-1]), [batch * length])
    is_new = tf.scatter_nd(
        places, tf.ones([batch * MASKED], tf.int32), [batch * length]
    )
    flat = tf.where(is_new > 0, updates, tf.reshape(ids, [-1]))
    return tf.reshape(flat, [batch, length])


def transformer(name, ids, mask, params, is_training, layers):
    """Returns a BERT in a separate scope."""
    with tf.variable_scope(name):
        return bert_modeling.Bert(
            CONFIG._replace(dropout=params["dropout"], layers=layers),
            is_training,
            ids,
            mask,
            tf.zeros_like(ids),
            by_one_hot=False,
        )


def model_fn(features, labels, mode, params):
    """Trains both networks with one optimizer."""
    del labels
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    ids, mask = features["input_ids"], features["input_mask"]
    positions = features["masked_positions"]
    batch = ids.shape.as_list()[0]
    hidden = scattered(ids, positions, tf.fill([batch, MASKED], MASK))
    # The generator consists only of embeddings.
    generator = transformer("generator", hidden, mask, params, is_training, layers=0)
    with tf.variable_scope("generator_predictions"):
        chosen = tf.batch_gather(generator.sequence, positions)
        logits = tf.layers.dense(
            chosen,
            CONFIG.vocabulary,
            kernel_initializer=starting_values.Normal(0.1),
        )
    true = tf.batch_gather(ids, positions)
    log_shares = tf.nn.log_softmax(logits)
    one_hot = tf.one_hot(true, CONFIG.vocabulary)
    generator_losses = -tf.reduce_sum(log_shares * one_hot, axis=-1)
    # The Gumbel noise is part of the input, so that it is reproducible.
    drawn = sample(logits, features["noise"])
    replaced = scattered(ids, positions, drawn)
    is_replaced = tf.cast(tf.not_equal(replaced, ids), tf.float32)
    discriminator = transformer(
        "discriminator", replaced, mask, params, is_training, layers=1
    )
    with tf.variable_scope("discriminator_predictions"):
        doubts = tf.layers.dense(
            discriminator.sequence,
            1,
            kernel_initializer=starting_values.Normal(0.1),
        )
        doubts = tf.squeeze(doubts, -1)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(logits=doubts, labels=is_replaced)
    weights = tf.cast(mask, tf.float32)
    discriminator_loss = tf.reduce_sum(losses * weights)
    discriminator_loss /= tf.reduce_sum(weights)
    loss = tf.reduce_mean(generator_losses) + 5.0 * discriminator_loss
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {"drawn": drawn, "doubts": tf.nn.sigmoid(doubts)}
        return tf.estimator.tpu.TPUEstimatorSpec(mode, predictions=predictions)
    if mode == tf.estimator.ModeKeys.EVAL:
        tensors = {
            "drawn": drawn,
            "true": true,
            "generator_losses": generator_losses,
            "doubts": doubts,
            "is_replaced": is_replaced,
            "weights": weights,
        }
        return tf.estimator.tpu.TPUEstimatorSpec(
            mode=mode, loss=loss, eval_metrics=(metric_fn, tensors)
        )
    train_op = bert_optimization.create_train_op(loss, params, STEPS, 3)
    return tf.estimator.tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def metric_fn(drawn, true, generator_losses, doubts, is_replaced, weights):
    """Computes the accuracies of both networks."""
    found = tf.cast(doubts > 0, tf.float32)
    return {
        "sampled_accuracy": tf.metrics.accuracy(true, drawn),
        "generator_loss": tf.metrics.mean(generator_losses),
        "found": tf.metrics.accuracy(is_replaced, found, weights),
        "auc": tf.metrics.auc(is_replaced, tf.nn.sigmoid(doubts), weights),
    }


def dataset(examples, seed):
    """Returns sequences of words that increase by two."""
    rng = np.random.RandomState(seed)
    ids = rng.randint(CONFIG.vocabulary, size=(examples, 1))
    ids = (ids + 2 * np.arange(LENGTH)) % (CONFIG.vocabulary - 2) + 2
    positions = np.stack([rng.permutation(LENGTH)[:MASKED] for _ in range(examples)])
    noise = rng.gumbel(size=(examples, MASKED, CONFIG.vocabulary))
    features = {
        "input_ids": ids.astype(np.int32),
        "input_mask": np.ones_like(ids, np.int32),
        "masked_positions": positions.astype(np.int32),
        "noise": noise.astype(np.float32),
    }
    return tf.data.Dataset.from_tensor_slices(features)


def train_input_fn(params):
    """Returns endless batches."""
    data = dataset(STEPS * BATCH, seed=1)
    return data.repeat().batch(params["batch_size"], drop_remainder=True)


def eval_input_fn(params):
    """Returns held-out sentences."""
    data = dataset(4 * BATCH, seed=2)
    return data.batch(params["batch_size"], drop_remainder=True)
