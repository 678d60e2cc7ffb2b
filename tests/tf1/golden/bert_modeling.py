"""A small BERT, with the variable names of the original."""

import collections
import math

import starting_values
import tensorflow.compat.v1 as tf

Config = collections.namedtuple(
    "Config",
    [
        "vocabulary",
        "hidden",
        "layers",
        "heads",
        "intermediate",
        "positions",
        "types",
        "dropout",
    ],
)
TINY = Config(
    vocabulary=40,
    hidden=16,
    layers=1,
    heads=2,
    intermediate=32,
    positions=12,
    types=2,
    dropout=0.0,
)


def gelu(x):
    """Computes the activation with the error function."""
    return x * 0.5 * (1.0 + tf.erf(x / math.sqrt(2.0)))


def dropout(x, rate):
    """Applies dropout, unless the rate is 0."""
    if not rate:
        return x
    return tf.nn.dropout(x, keep_prob=1.0 - rate)


def layer_norm(x):
    """Normalizes the last axis, with the variable names of contrib."""
    width = x.shape.as_list()[-1]
    with tf.variable_scope("LayerNorm"):
        beta = tf.get_variable("beta", [width], initializer=tf.zeros_initializer)
        gamma = tf.get_variable("gamma", [width], initializer=tf.ones_initializer)
        mean, variance = tf.nn.moments(x, axes=[-1], keep_dims=True)
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-12)


def dense(x, units, activation, name, start):
    """Applies a dense layer to the last axis of a tensor of any rank."""
    width = x.shape.as_list()[-1]
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [width, units], initializer=start)
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer)
        y = tf.matmul(tf.reshape(x, [-1, width]), kernel)
        y = tf.nn.bias_add(y, bias)
        y = tf.reshape(y, x.shape.as_list()[:-1] + [units])
        return activation(y) if activation else y


def look_up(ids, table, by_one_hot):
    """Looks up rows by a product with one-hot rows, or gathers them."""
    rows, width = table.shape.as_list()
    if not by_one_hot:
        return tf.gather(table, ids)
    flat = tf.one_hot(tf.reshape(ids, [-1]), depth=rows)
    return tf.reshape(tf.matmul(flat, table), ids.shape.as_list() + [width])


class Bert:
    """The model, which creates its variables.

    Args:
        config: The sizes.
        is_training: Whether to apply dropout.
        ids: The ids of words, `[batch, length]`.
        mask: 1 for words, 0 for padding.
        types: The number of each word's sentence.
        by_one_hot: Whether words are looked up by one-hot rows, as for TPUs.
    """

    def __init__(self, config, is_training, ids, mask, types, by_one_hot):
        if not is_training:
            config = config._replace(dropout=0.0)
        self._config = config
        self.start = starting_values.Normal(0.05)
        with tf.variable_scope("bert"):
            with tf.variable_scope("embeddings"):
                x = self._embeddings(ids, types, by_one_hot)
            with tf.variable_scope("encoder"):
                for number in range(config.layers):
                    with tf.variable_scope(f"layer_{number}"):
                        x = self._layer(x, mask)
            self.sequence = x
            with tf.variable_scope("pooler"):
                first = tf.squeeze(x[:, 0:1, :], axis=1)
                self.pooled = self._dense(first, config.hidden, tf.tanh)

    def _dense(self, x, units, activation=None, name="dense"):
        return dense(x, units, activation, name, self.start)

    def _embeddings(self, ids, types, by_one_hot):
        config = self._config
        self.words = tf.get_variable(
            "word_embeddings",
            [config.vocabulary, config.hidden],
            initializer=self.start,
        )
        kinds = tf.get_variable(
            "token_type_embeddings",
            [config.types, config.hidden],
            initializer=self.start,
        )
        places = tf.get_variable(
            "position_embeddings",
            [config.positions, config.hidden],
            initializer=self.start,
        )
        length = ids.shape.as_list()[1]
        x = look_up(ids, self.words, by_one_hot)
        x += look_up(types, kinds, by_one_hot=True)
        x += tf.expand_dims(tf.slice(places, [0, 0], [length, -1]), 0)
        return dropout(layer_norm(x), config.dropout)

    def _layer(self, x, mask):
        config = self._config
        with tf.variable_scope("attention"):
            with tf.variable_scope("self"):
                mixed = self._attention(x, mask)
            with tf.variable_scope("output"):
                mixed = self._dense(mixed, config.hidden)
                x = layer_norm(x + dropout(mixed, config.dropout))
        with tf.variable_scope("intermediate"):
            wide = self._dense(x, config.intermediate, gelu)
        with tf.variable_scope("output"):
            narrow = dropout(self._dense(wide, config.hidden), config.dropout)
            return layer_norm(x + narrow)

    def _attention(self, x, mask):
        config = self._config
        batch, length, width = x.shape.as_list()
        size = width // config.heads

        def heads(name):
            y = self._dense(x, width, name=name)
            y = tf.reshape(y, [batch, length, config.heads, size])
            return tf.transpose(y, [0, 2, 1, 3])

        query, key, value = heads("query"), heads("key"), heads("value")
        scores = tf.matmul(query, key, transpose_b=True)
        scores = tf.multiply(scores, 1.0 / math.sqrt(float(size)))
        seen = tf.cast(tf.reshape(mask, [batch, 1, 1, length]), tf.float32)
        scores += (1.0 - seen) * -10000.0
        shares = dropout(tf.nn.softmax(scores), config.dropout)
        mixed = tf.transpose(tf.matmul(shares, value), [0, 2, 1, 3])
        return tf.reshape(mixed, [batch, length, width])
