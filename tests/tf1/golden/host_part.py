"""A script with strings and sparse tensors in its input, as in 2018.

    tf115/bin/python tests/tf1/golden/host_part.py

writes `host_part.json`. `make_contrib.py` shows how to install TensorFlow 1.15.5.
"""

import numpy as np
import tensorflow.compat.v1 as tf
from running import write_golden

STEPS = 3
WORDS = ["a", "b", "c", "d"]
TAGS = ["no", "yes"]


def start(*shape):
    """Returns an initializer that does not depend on the graph."""
    values = np.random.RandomState(len(shape) + shape[0]).normal(size=shape)
    return tf.constant_initializer(values.astype("float32"))


def sparse(rows, values, dtype):
    """Returns a sparse matrix with the values of some rows at the left."""
    cells = [[r, c] for r, row in enumerate(rows) for c in range(len(values[row]))]
    flat = [each for row in rows for each in values[row]]
    widest = max(len(values[row]) for row in rows)
    return tf.SparseTensor(
        np.reshape(cells, [-1, 2]), tf.constant(flat, dtype), [len(rows), widest]
    )


IDS = [[1, 2, 2], [3], [0, 4], [2], [], [1], [4, 4, 0], [3, 2]]
SHARES = [[1.0 + n / 2 for n in range(len(row))] for row in IDS]
PARTS = [[WORDS[i % 4] + "x" * (i > 4) for i in row] for row in IDS]
X = np.linspace(-1, 1, 16).reshape(8, 2).astype("float32")
NAMES = ["a", "b", "", "c", "zz", "a", "d", "b"]
TOKENS = [["a", "b"], ["c", ""], ["d", "d"], ["q", "a"]] * 2
LABELS = ["yes", "no", "no", "yes", "yes", "no", "yes", "no"]


def batch(rows):
    """Returns the features and labels of some examples."""
    features = {
        "x": tf.constant(X[rows]),
        "name": tf.constant([NAMES[r] for r in rows]),
        "tokens": tf.constant([TOKENS[r] for r in rows]),
        "ids": sparse(rows, IDS, tf.int64),
        "shares": sparse(rows, SHARES, tf.float32),
        "parts": sparse(rows, PARTS, tf.string),
    }
    return features, tf.constant([LABELS[r] for r in rows])


def input_fn(params=None):
    """Returns a dataset of two batches."""
    dataset = None
    for rows in ([0, 1, 2, 3], [4, 5, 6, 7]):
        one = tf.data.Dataset.from_tensors(batch(rows))
        # The static shapes of the sparse tensors differ.
        one = one.map(without_shapes)
        dataset = one if dataset is None else dataset.concatenate(one)
    return dataset


def without_shapes(features, labels):
    """Returns the dataset with unknown batch sizes."""

    def one(tensor):
        if isinstance(tensor, tf.SparseTensor):
            shape = tf.placeholder_with_default(tensor.dense_shape, [2])
            return tf.SparseTensor(tensor.indices, tensor.values, shape)
        return tf.placeholder_with_default(tensor, [None, *tensor.shape[1:]])

    return {name: one(each) for name, each in features.items()}, one(labels)


def columns():
    """Returns feature columns of strings and of sparse ids."""
    fc = tf.feature_column
    name = fc.categorical_column_with_vocabulary_list("name", WORDS, num_oov_buckets=2)
    parts = fc.categorical_column_with_hash_bucket("parts", 7)
    ids = fc.categorical_column_with_identity("ids", 6)
    weighted = fc.weighted_categorical_column(ids, "shares")
    crossed = fc.crossed_column(["name", "tokens"], 11)
    return [
        fc.numeric_column("x", [2]),
        fc.indicator_column(name),
        fc.embedding_column(parts, 2, "sqrtn", initializer=start(7, 2)),
        fc.embedding_column(weighted, 3, "mean", initializer=start(6, 3)),
        fc.embedding_column(crossed, 2, "sum", initializer=start(11, 2)),
    ]


def weighed_lookups(ids, shares):
    """Looks up rows with each combiner, also of a table of matrices."""
    rows = tf.get_variable("rows", [6, 2], initializer=start(6, 2))
    blocks = tf.get_variable("blocks", [6, 2, 2], initializer=start(6, 2, 2))
    filled = [tf.sparse.fill_empty_rows(each, 1)[0] for each in (ids, shares)]
    looked_up = []
    for combiner in ("sum", "mean", "sqrtn"):
        looked_up += [
            tf.nn.safe_embedding_lookup_sparse([rows], ids, shares, combiner),
            tf.nn.embedding_lookup_sparse(rows, *filled, combiner=combiner),
            tf.reshape(
                tf.nn.embedding_lookup_sparse(blocks, *filled, combiner=combiner),
                [-1, 4],
            ),
        ]
    return looked_up


def model_fn(features, labels, mode, params):
    """A classifier with all features."""
    read = tf.feature_column.input_layer(features, columns())
    words = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(WORDS, tf.range(1, 5, dtype=tf.int64)), 0
    )
    table = tf.get_variable("tokens", [5, 2], initializer=start(5, 2))
    tokens = tf.nn.embedding_lookup(table, words.lookup(features["tokens"]))
    own = tf.get_variable("own", [6, 2], initializer=start(6, 2))
    summed = tf.nn.embedding_lookup_sparse(
        own, tf.sparse.fill_empty_rows(features["ids"], 5)[0], None, combiner="sum"
    )
    weighed = weighed_lookups(features["ids"], features["shares"])
    dense = tf.sparse.to_dense(features["shares"])
    lengths = tf.strings.length(features["name"])
    # More than 32 bits before the modulo.
    hashed = tf.strings.to_hash_bucket_fast(features["name"], 10**12) % 7
    x = tf.concat(
        [
            read,
            tf.reduce_mean(tokens, 1),
            summed,
            tf.reduce_sum(dense, 1, keepdims=True),
            tf.cast(lengths, tf.float32)[:, None],
            tf.cast(hashed, tf.float32)[:, None] / 7.0,
            *weighed,
        ],
        1,
    )
    width = x.shape.as_list()[1]
    kernel = tf.get_variable("kernel", [width, 2], initializer=start(width, 2))
    logits = tf.matmul(tf.reshape(x, [-1, width]), kernel)
    best = tf.argmax(logits, 1)
    names = tf.gather(tf.constant(TAGS), best)
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {
            "logits": logits,
            "name": features["name"],
            "tag": names,
            "joined": tf.strings.join([features["name"], names], "/"),
        }
        return tf.estimator.EstimatorSpec(mode, predictions=predictions)
    tags = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(TAGS, tf.range(2, dtype=tf.int64)), -1
    )
    wanted = tags.lookup(labels)
    loss = tf.losses.sparse_softmax_cross_entropy(wanted, logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        same = tf.cast(tf.equal(names, labels), tf.float32)
        metrics = {
            "accuracy": tf.metrics.accuracy(wanted, best),
            "same": tf.metrics.mean(same),
        }
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def results(estimator):
    """Returns the results of an estimator, as JSON values."""
    estimator.train(lambda: input_fn().repeat(), steps=STEPS)
    predicted = [*estimator.predict(input_fn)]
    evaluated = estimator.evaluate(input_fn)
    names = sorted(estimator.get_variable_names())
    return {
        "variables": {n: estimator.get_variable_value(n).tolist() for n in names},
        "evaluated": {n: float(value) for n, value in evaluated.items()},
        "predicted": {
            name: [_plain(row[name]) for row in predicted] for name in predicted[0]
        },
    }


def _plain(value):
    return value.decode() if isinstance(value, bytes) else np.asarray(value).tolist()


if __name__ == "__main__":
    write_golden("host_part", results)
