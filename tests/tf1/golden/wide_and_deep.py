"""A model on the columns of a table, some of them embedded."""

import numpy as np
import starting_values
import tensorflow.compat.v1 as tf

STEPS = 12
BATCH = 16
PARAMS = {"learning_rate": 0.1, "dropout": 0.0}
CITIES, BUCKETS, COLORS = 6, 20, 3


def columns(start):
    """Returns the feature columns of the table."""
    city = tf.feature_column.categorical_column_with_identity("city", CITIES)
    word = tf.feature_column.categorical_column_with_identity("word", BUCKETS)
    color = tf.feature_column.categorical_column_with_identity("color", COLORS)
    age = tf.feature_column.numeric_column("age")
    return [
        tf.feature_column.embedding_column(city, 3, initializer=start),
        tf.feature_column.embedding_column(
            word, 4, combiner="sqrtn", initializer=start
        ),
        tf.feature_column.indicator_column(color),
        tf.feature_column.bucketized_column(age, [-1.0, 0.0, 1.0]),
        tf.feature_column.numeric_column("income", shape=[2]),
    ]


def model_fn(features, labels, mode, params):
    """Trains a small network on all columns."""
    start = starting_values.Normal(0.3)
    x = tf.feature_column.input_layer(features, columns(start))
    x = tf.layers.dense(x, 8, tf.nn.relu, kernel_initializer=start)
    x = tf.layers.dropout(
        x, params["dropout"], training=mode == tf.estimator.ModeKeys.TRAIN
    )
    logits = tf.layers.dense(x, 1, kernel_initializer=start)
    shares = tf.sigmoid(logits)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.tpu.TPUEstimatorSpec(
            mode=mode, predictions={"shares": shares}
        )
    loss = tf.losses.sigmoid_cross_entropy(labels, logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.tpu.TPUEstimatorSpec(
            mode=mode, loss=loss, eval_metrics=(metric_fn, [labels, shares])
        )
    optimizer = tf.train.AdagradOptimizer(params["learning_rate"])
    if params["use_tpu"]:
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
    return tf.estimator.tpu.TPUEstimatorSpec(
        mode=mode,
        loss=loss,
        train_op=optimizer.minimize(loss, global_step=tf.train.get_global_step()),
    )


def metric_fn(labels, shares):
    """Computes metrics of a binary classifier."""
    return {
        "auc": tf.metrics.auc(labels, shares),
        "precision": tf.metrics.precision(labels, shares > 0.5),
        "mean": tf.metrics.mean(shares),
    }


def dataset(examples, seed):
    """Returns a table with hashed words, because TPU cores do not support strings."""
    rng = np.random.RandomState(seed)
    words = rng.randint(100, size=(examples, 2))
    city = rng.randint(CITIES, size=examples)
    income = rng.normal(size=(examples, 2))
    features = {
        "city": city.astype(np.int64),
        "word": np.array([[f"w{w}" for w in pair] for pair in words]),
        "color": rng.randint(COLORS, size=examples).astype(np.int64),
        "age": rng.normal(size=examples).astype(np.float32),
        "income": income.astype(np.float32),
    }
    score = income.sum(axis=1) + (city % 2) * 2 - 1
    labels = (score > 0).astype(np.float32)[:, None]

    def hashed(features, labels):
        ids = tf.string_to_hash_bucket_fast(features["word"], BUCKETS)
        return dict(features, word=ids), labels

    data = tf.data.Dataset.from_tensor_slices((features, labels))
    return data.map(hashed)


def train_input_fn(params):
    """Returns endless batches."""
    data = dataset(STEPS * BATCH, seed=1)
    return data.repeat().batch(params["batch_size"], drop_remainder=True)


def eval_input_fn(params):
    """Returns held-out rows."""
    data = dataset(4 * BATCH, seed=2)
    return data.batch(params["batch_size"], drop_remainder=True)
