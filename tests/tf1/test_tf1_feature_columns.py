"""Tests feature columns that read a table."""

import keras_tpu_estimator as kte  # isort: skip

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tf1_programs import (
    assert_same,
    estimator,
    fed,
    model_fn_of,
    run_in_session,
    trained,
    weights,
)

from keras_tpu_estimator.tf1.reimplemented.feature_column import sequence_input_layer
from keras_tpu_estimator.tf1_tools.tf_estimator import Estimator

IDS = tf.feature_column.categorical_column_with_identity
ROWS = 16


def table(seed=0):
    """Numbers, and ids of which some are missing, in one row all."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(-1, 5, (ROWS, 3))
    ids[2] = -1
    return {
        "ids": ids,
        "more": rng.integers(-1, 9, (ROWS, 2)).astype("int32"),
        "all": rng.integers(0, 5, (ROWS, 3)),
        "one": rng.integers(0, 5, ROWS),
        "share": rng.random((ROWS, 3)).astype("float32"),
        "age": rng.normal(size=ROWS).astype("float32"),
    }


def embedded(column, size=2, **settings):
    """An embedding with its own initial values."""
    start = weights(column.num_buckets, size, seed=len(settings))
    return tf.feature_column.embedding_column(
        column, size, initializer=start, **settings
    )


def read(features):
    """All kinds of columns."""
    ids, more, one = IDS("ids", 5), IDS("more", 6, 5), IDS("one", 5)
    age = tf.feature_column.numeric_column("age")
    ages = tf.feature_column.bucketized_column(age, [-1.0, 0.0, 1.0])
    listed = tf.feature_column.categorical_column_with_vocabulary_list
    cross = tf.feature_column.crossed_column
    columns = [
        embedded(listed("more", [7, 2, 4, 0])),
        embedded(listed("more", [7, 2, 4], default_value=1), combiner="sum"),
        embedded(cross([ids, more], 7)),
        embedded(cross(["one", ages], 5, hash_key=3), combiner="sum"),
        tf.feature_column.indicator_column(cross(["one", ids, "all"], 6)),
        *(embedded(ids, combiner=how) for how in ("mean", "sum", "sqrtn")),
        embedded(more, combiner="sum", max_norm=0.3),
        embedded(one),
        tf.feature_column.indicator_column(more),
        tf.feature_column.indicator_column(ids),
        age,
        ages,
        embedded(tf.feature_column.bucketized_column(age, [0.0])),
        embedded(
            tf.feature_column.weighted_categorical_column(IDS("all", 5), "share"),
            combiner="mean",
        ),
    ]
    # Columns with equal names would be one column.
    return tf.concat(
        [with_scope(number, features, column) for number, column in enumerate(columns)],
        axis=1,
    )


def with_scope(number, features, column):
    """A column that is read in a separate scope."""
    with tf.variable_scope(f"column_{number}"):
        return tf.feature_column.input_layer(features, column)


def logits(features, is_training):
    """A linear model beside an embedding of everything."""
    del is_training
    linear = tf.feature_column.linear_model(
        features, [IDS("ids", 5), IDS("one", 5)], units=4
    )
    x = read(features)
    kernel = tf.get_variable(
        "kernel", [x.shape[1], 4], initializer=weights(x.shape[1], 4)
    )
    return linear + tf.matmul(x, kernel)


# The name in TensorFlow's own layer for linear models.
@pytest.mark.filterwarnings("ignore:`layer.add_variable` is deprecated")
def test_columns_are_trained_as_in_a_session(tmp_path):
    data = [(table(s), np.arange(ROWS) % 4) for s in range(3)]
    model_fn = model_fn_of(logits, lambda step: tf.train.MomentumOptimizer(0.1, 0.9))
    values = trained(model_fn, tmp_path, data)
    _, expected = run_in_session(on_dicts(model_fn), flat(data))
    assert_same(values, expected)


def flat(data):
    """Batches as flat lists of features."""
    return [(*features.values(), labels) for features, labels in data]


def on_dicts(model_fn):
    """A model_fn that receives its features as a flat list."""

    def of_leaves(*arguments):
        *leaves, labels, mode, params = arguments
        features = dict(zip(table(), leaves, strict=True))
        return model_fn(features, labels, mode, params)

    return of_leaves


@pytest.mark.parametrize(
    "column",
    [
        tf.feature_column.categorical_column_with_hash_bucket,
        lambda key, size, dtype: (
            tf.feature_column.categorical_column_with_vocabulary_list(
                key, range(size), dtype, num_oov_buckets=2
            )
        ),
    ],
)
def test_columns_that_hash_numbers_are_refused(column, tmp_path):
    def model_fn(features, labels, mode, params):
        ids = tf.feature_column.indicator_column(column("all", 5, tf.int64))
        read = tf.feature_column.input_layer(features, ids)
        return kte.tf1.TPUEstimatorSpec(mode, loss=tf.reduce_sum(read))

    with pytest.raises(ValueError, match=r"AsString with strings, made at"):
        estimator(model_fn, tmp_path).evaluate(fed([table()]))


SEQUENCES = [[1, 2], [], [3], [0, 4, 1], [2], [1], [3, 3], []]
# Results of TensorFlow 1.15.5: rows 1 and 4 of the embedding, weights, predictions 2-5.
OF_IDS = (
    [[0.11397137, 0.04712448], [0.09889346, 0.04116607]],
    [0.09146093, 0.1003246],
    [0.00912335, 0.01225336, -0.0136757, 0.01515167],
)
OF_BOTH = (
    [[0.11549351, 0.04886305], [0.09902579, 0.04130905]],
    [0.09198511, 0.09851425, 0.01518098, 0.02795283, -0.00214499, 0.06388202],
    [0.07271742, 0.04797973, -0.01535455, 0.04339022],
)


@pytest.mark.parametrize(
    ("has_words", "expected"), [(False, OF_IDS), (True, OF_BOTH)], ids=["ids", "both"]
)
def test_columns_of_sequences_match_tensorflow_1(tmp_path, has_words, expected):
    fc = tf.feature_column
    ids = np.array([(row + [-1] * 3)[:3] for row in SEQUENCES])
    data = {"ids": ids}
    if has_words:
        data["words"] = np.array([*"abcde", ""])[ids]

    def input_fn():
        y = np.arange(8, dtype="float32")[:, None] % 3
        return tf.data.Dataset.from_tensor_slices((data, y)).batch(4, True)

    def model_fn(features, labels, mode, params):
        start = tf.constant_initializer(0.1 * np.sin(np.arange(10)))
        of_ids = fc.sequence_categorical_column_with_identity("ids", 5)
        of_words = fc.sequence_categorical_column_with_vocabulary_list(
            "words", ["a", "b", "c"], num_oov_buckets=1
        )
        columns = [fc.embedding_column(of_ids, 2, initializer=start)]
        if has_words:
            columns.insert(0, fc.indicator_column(of_words))
        x, n = sequence_input_layer(features, columns)
        lengths = tf.cast(tf.maximum(n, 1), tf.float32)[:, None]
        size = x.shape[2]
        start = tf.constant_initializer(0.1 * np.sin(np.arange(size) + 1.0))
        w = tf.get_variable("w", [size, 1], initializer=start)
        y = tf.matmul(tf.reduce_sum(x, 1) / lengths, w)
        if mode == "infer":
            return kte.tf1.EstimatorSpec(mode, predictions={"y": y, "n": n})
        loss = tf.losses.mean_squared_error(labels, y)
        train_op = tf.train.AdagradOptimizer(0.1).minimize(
            loss, tf.train.get_global_step()
        )
        return kte.tf1.EstimatorSpec(mode, loss=loss, train_op=train_op)

    made = Estimator(model_fn, str(tmp_path), params={})
    made.train(input_fn, steps=2)
    table, w, y = expected
    name = "sequence_input_layer/ids_embedding/embedding_weights"
    found = made.get_variable_value(name)[[1, 4]]
    np.testing.assert_allclose(found, table, rtol=1e-5)
    np.testing.assert_allclose(made.get_variable_value("w").ravel(), w, rtol=1e-5)
    rows = [*made.predict(input_fn)]
    assert [row["n"] for row in rows] == [*map(len, SEQUENCES)]
    np.testing.assert_allclose([row["y"][0] for row in rows[2:6]], y, rtol=1e-5)


def test_layer_of_sequences_needs_their_columns():
    with pytest.raises(ValueError, match="must read sequences. Received"):
        sequence_input_layer({}, [tf.feature_column.numeric_column("age")])
