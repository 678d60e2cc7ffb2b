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
