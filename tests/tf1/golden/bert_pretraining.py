"""A BERT that predicts masked words, and whether a sentence is the next one."""

import bert_modeling
import bert_optimization
import numpy as np
import tensorflow.compat.v1 as tf

STEPS = 12
BATCH = 16
PARAMS = {
    "learning_rate": 1e-2,
    "clip_norm": 1.0,
    "dropout": 0.0,
    "by_one_hot": True,
}
LENGTH, MASKED = 12, 3


def model_fn(features, labels, mode, params):
    """Trains and evaluates; the features contain the labels."""
    del labels
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    config = bert_modeling.TINY._replace(dropout=params["dropout"])
    bert = bert_modeling.Bert(
        config,
        is_training,
        features["input_ids"],
        features["input_mask"],
        features["segment_ids"],
        params["by_one_hot"],
    )
    word_losses, word_logits = masked_words(bert, config, features)
    next_losses, next_logits = next_sentences(bert, features["next_sentence_labels"])
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {
            "pooled": bert.pooled,
            "words": tf.reshape(
                tf.argmax(word_logits, -1, output_type=tf.int32), [-1, MASKED]
            ),
        }
        return tf.estimator.tpu.TPUEstimatorSpec(mode, predictions=predictions)
    weights = tf.reshape(features["masked_lm_weights"], [-1])
    word_loss = tf.reduce_sum(weights * word_losses)
    word_loss /= tf.reduce_sum(weights) + 1e-5
    loss = word_loss + tf.reduce_mean(next_losses)
    if mode == tf.estimator.ModeKeys.EVAL:
        tensors = [
            word_losses,
            word_logits,
            features["masked_lm_ids"],
            features["masked_lm_weights"],
            next_losses,
            next_logits,
            features["next_sentence_labels"],
        ]
        return tf.estimator.tpu.TPUEstimatorSpec(
            mode=mode, loss=loss, eval_metrics=(metric_fn, tensors)
        )
    train_op = bert_optimization.create_train_op(loss, params, STEPS, 3)
    return tf.estimator.tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def metric_fn(
    word_losses,
    word_logits,
    word_ids,
    word_weights,
    next_losses,
    next_logits,
    next_labels,
):
    """Computes accuracies and losses of both tasks."""
    flat_ids = tf.reshape(word_ids, [-1])
    flat_weights = tf.reshape(word_weights, [-1])
    guesses = tf.argmax(word_logits, axis=-1, output_type=tf.int32)
    next_guesses = tf.argmax(next_logits, axis=-1, output_type=tf.int32)
    return {
        "masked_lm_accuracy": tf.metrics.accuracy(
            labels=flat_ids, predictions=guesses, weights=flat_weights
        ),
        "masked_lm_loss": tf.metrics.mean(word_losses, flat_weights),
        "next_sentence_accuracy": tf.metrics.accuracy(
            labels=tf.reshape(next_labels, [-1]), predictions=next_guesses
        ),
        "next_sentence_loss": tf.metrics.mean(values=next_losses),
    }


def masked_words(bert, config, features):
    """Returns the losses and logits of the masked words."""
    batch, length, width = bert.sequence.shape.as_list()
    rows = tf.reshape(tf.range(0, batch, dtype=tf.int32) * length, [-1, 1])
    places = tf.reshape(features["masked_lm_positions"] + rows, [-1])
    x = tf.gather(tf.reshape(bert.sequence, [-1, width]), places)
    with tf.variable_scope("cls/predictions"):
        with tf.variable_scope("transform"):
            x = bert_modeling.dense(x, width, bert_modeling.gelu, "dense", bert.start)
            x = bert_modeling.layer_norm(x)
        bias = tf.get_variable(
            "output_bias",
            shape=[config.vocabulary],
            initializer=tf.zeros_initializer(),
        )
        logits = tf.matmul(x, bert.words, transpose_b=True)
        logits = tf.nn.bias_add(logits, bias)
        log_shares = tf.nn.log_softmax(logits, axis=-1)
        flat = tf.reshape(features["masked_lm_ids"], [-1])
        one_hot = tf.one_hot(flat, depth=config.vocabulary, dtype=tf.float32)
        return -tf.reduce_sum(log_shares * one_hot, axis=[-1]), logits


def next_sentences(bert, labels):
    """Returns the losses and logits of next-sentence prediction."""
    width = bert.pooled.shape.as_list()[-1]
    with tf.variable_scope("cls/seq_relationship"):
        weights = tf.get_variable(
            "output_weights", shape=[2, width], initializer=bert.start
        )
        bias = tf.get_variable(
            "output_bias", shape=[2], initializer=tf.zeros_initializer()
        )
        logits = tf.matmul(bert.pooled, weights, transpose_b=True)
        logits = tf.nn.bias_add(logits, bias)
        log_shares = tf.nn.log_softmax(logits, axis=-1)
        one_hot = tf.one_hot(tf.reshape(labels, [-1]), depth=2)
        return -tf.reduce_sum(one_hot * log_shares, axis=-1), logits


def dataset(examples, seed):
    """Returns pairs of sentences in which each word is the previous one plus one."""
    rng = np.random.RandomState(seed)
    vocabulary = bert_modeling.TINY.vocabulary
    first = rng.randint(vocabulary, size=(examples, 1))
    ids = (first + np.arange(LENGTH)) % (vocabulary - 2) + 2
    lengths = rng.randint(LENGTH // 2, LENGTH + 1, size=(examples, 1))
    is_word = np.arange(LENGTH) < lengths
    is_next = rng.randint(2, size=(examples, 1))
    is_second = np.arange(LENGTH) >= LENGTH // 2
    ids = np.where(is_second & (is_next == 0), ids[:, ::-1], ids)
    places = np.stack([rng.permutation(LENGTH // 2)[:MASKED] for _ in range(examples)])
    hidden = np.take_along_axis(ids, places, axis=1)
    np.put_along_axis(ids, places, 1, axis=1)
    weights = rng.randint(2, size=places.shape)
    weights[:, 0] = 1
    features = {
        "input_ids": ids * is_word,
        "input_mask": is_word,
        "segment_ids": is_second & is_word,
        "masked_lm_positions": places,
        "masked_lm_ids": hidden,
        "next_sentence_labels": is_next,
    }
    features = {k: v.astype(np.int32) for k, v in features.items()}
    features["masked_lm_weights"] = weights.astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(features)


def train_input_fn(params):
    """Returns endless batches."""
    data = dataset(STEPS * BATCH, seed=1)
    return data.repeat().batch(params["batch_size"], drop_remainder=True)


def eval_input_fn(params):
    """Returns held-out pairs of sentences."""
    data = dataset(4 * BATCH, seed=2)
    return data.batch(params["batch_size"], drop_remainder=True)
