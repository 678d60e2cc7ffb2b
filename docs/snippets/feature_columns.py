"""The columns of `tf.feature_column`, as a port writes them."""

import keras_tpu_estimator as kte  # isort: split

import keras
import numpy as np
import tensorflow as tf  # noqa: TID253
from keras import ops

COLORS = ["red", "green", "blue"]


def listed(words, vocabulary, oov_buckets=0):
    """The ids of categorical_column_with_vocabulary_list."""
    matches = tf.cast(tf.equal(words[..., None], vocabulary), tf.int64)
    places = tf.range(1, len(vocabulary) + 1, dtype=tf.int64)
    ids = tf.reduce_sum(matches * places, axis=-1) - 1
    if oov_buckets:
        others = hashed(words, oov_buckets)
        ids = tf.where(ids < 0, others + len(vocabulary), ids)
    return tf.where(tf.equal(words, ""), tf.constant(-1, tf.int64), ids)


def hashed(values, buckets):
    """The ids of categorical_column_with_hash_bucket."""
    if values.dtype != tf.string:
        ids = tf.strings.to_hash_bucket_fast(tf.as_string(values), buckets)
        is_missing = tf.equal(values, -1)
    else:
        ids = tf.strings.to_hash_bucket_fast(values, buckets)
        is_missing = tf.equal(values, "")
    return tf.where(is_missing, tf.constant(-1, tf.int64), ids)


def crossed(keys, buckets):
    """The ids of crossed_column, of keys with one value an example."""
    pairs = [key[:, None] for key in keys]
    return tf.sparse.to_dense(tf.sparse.cross_hashed(pairs, buckets))[:, 0]


def ids_of(features):
    """The features of a model_fn, from those with strings."""
    return {
        "age": features["age"],
        "city": features["city"],
        "city_X_color": crossed([features["city"], features["color"]], 20),
        "color": listed(features["color"], COLORS, oov_buckets=2),
        "income": features["income"],
        "share": features["share"],
        "word": hashed(features["word"], 10),
        "zip": hashed(features["zip"], 7),
    }


def bucketized(values, boundaries):
    """The ids of bucketized_column."""
    return ops.sum(values[..., None] >= np.array(boundaries), axis=-1)


def indicator(ids, count):
    """indicator_column: how often each id occurs; -1 is left out."""
    ones = ops.one_hot(ids, count)
    return ones if ids.ndim == 1 else ops.sum(ones, axis=1)


def combined(table, ids, combiner="mean", weights=None):
    """embedding_column: the rows of each example's ids, combined."""
    ids = ids[:, None] if ids.ndim == 1 else ids
    shares = ops.cast(ids >= 0, table.dtype)
    if weights is not None:
        shares = shares * weights
    rows = ops.take(table, ops.maximum(ids, 0), axis=0)
    total = ops.sum(rows * shares[..., None], axis=1)
    size = {
        "sum": ops.ones_like(shares[:, 0]),
        "mean": ops.sum(shares, axis=1),
        "sqrtn": ops.sqrt(ops.sum(shares**2, axis=1)),
    }[combiner]
    return ops.divide_no_nan(total, size[:, None])


def table_of(name, rows, dimension):
    """The variable of an embedding_column, under its name in TF1."""
    start = keras.initializers.TruncatedNormal(stddev=dimension**-0.5)
    with kte.variable_scope(f"input_layer/{name}_embedding"):
        return keras.Variable(start, (rows, dimension), name="embedding_weights")


def input_layer(features):
    """Dense columns side by side, in the order of their names."""
    words = table_of("word", 10, 3)
    columns = {
        "age": features["age"][:, None] / 10,
        "age_bucketized": indicator(bucketized(features["age"], [25, 40]), 3),
        "city_X_color_indicator": indicator(features["city_X_color"], 20),
        "city_indicator": indicator(features["city"], 6),
        "color_indicator": indicator(features["color"], 5),
        "income": features["income"],
        "word_embedding": combined(words, features["word"], "sqrtn"),
        "zip_indicator": indicator(features["zip"], 7),
    }
    return ops.concatenate([columns[name] for name in sorted(columns)], axis=1)
