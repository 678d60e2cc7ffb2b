"""Writes `columns.json`, with the feature columns of TensorFlow 1.15.5.

    tf115/bin/python tests/tf1/golden/make_columns.py

`make_contrib.py` documents the installation. The columns are those of
`docs/snippets/feature_columns.py`.
"""

import json
import os
import sys
import tempfile

import numpy as np
import tensorflow as tf

HERE = os.path.dirname(os.path.abspath(__file__))
FEATURES = {
    "age": [23.0, 25.0, 41.0, 58.0],
    "city": [0, 2, 5, 1],
    "color": ["red", "blue", "pink", ""],
    "income": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]],
    "pair": [[1, 2], [3, 3], [0, 1], [4, 4]],
    "share": [[0.5, 1.0], [2.0, 1.0], [1.0, 1.0], [1.0, 3.0]],
    "word": [["a", "b"], ["c", ""], ["", ""], ["d", "d"]],
    "zip": [10115, 20095, -1, 80331],
}
TABLE = np.random.RandomState(0).normal(size=(10, 3)).astype("float32")
fc = tf.feature_column


def categorical():
    """Returns the columns of ids."""
    return {
        "city": fc.categorical_column_with_identity("city", 6),
        "color": fc.categorical_column_with_vocabulary_list(
            "color", ["red", "green", "blue"], num_oov_buckets=2
        ),
        "file": fc.categorical_column_with_vocabulary_file(
            "color", vocabulary_file(), num_oov_buckets=2
        ),
        "known": fc.categorical_column_with_vocabulary_list(
            "color", ["red", "green", "blue"]
        ),
        "word": fc.categorical_column_with_hash_bucket("word", 10),
        "zip": fc.categorical_column_with_hash_bucket("zip", 7, tf.int64),
        "city_X_color": fc.crossed_column(["city", "color"], 20),
    }


def vocabulary_file():
    """Writes a vocabulary file of colors."""
    path = os.path.join(tempfile.mkdtemp(), "colors.txt")
    with open(path, "w") as file:
        file.write("red\ngreen\nblue\n")
    return path


def dense():
    """Returns the numeric columns by name."""
    ids = categorical()
    start = tf.constant_initializer(TABLE)
    age = fc.numeric_column("age")
    weighted = fc.weighted_categorical_column(
        fc.categorical_column_with_identity("pair", 10), "share"
    )
    columns = {
        "indicator_" + name: fc.indicator_column(column) for name, column in ids.items()
    }
    for combiner in ("mean", "sqrtn", "sum"):
        columns["embedding_" + combiner] = fc.embedding_column(
            ids["word"], 3, combiner, initializer=start
        )
        columns["weighted_" + combiner] = fc.embedding_column(
            weighted, 3, combiner, initializer=start
        )
    columns["age"] = fc.numeric_column("age", normalizer_fn=lambda x: x / 10)
    columns["bucketized"] = fc.bucketized_column(age, [25, 40])
    columns["income"] = fc.numeric_column("income", [2])
    return columns


def values_of(build):
    """Computes values from features; also returns the names of variables."""
    with tf.Graph().as_default(), tf.Session() as session:
        features = {name: tf.constant(x) for name, x in FEATURES.items()}
        features["zip"] = tf.cast(features["zip"], tf.int64)
        result = build(features)
        session.run(tf.global_variables_initializer())
        session.run(tf.tables_initializer())
        names = [variable.op.name for variable in tf.global_variables()]
        return session.run(result).tolist(), names


def named():
    """Returns the names of columns and of their variables."""
    age, identity = (
        fc.numeric_column("age"),
        fc.categorical_column_with_identity,
    )
    color = fc.categorical_column_with_hash_bucket("color", 5)
    pair = fc.weighted_categorical_column(identity("pair", 10), "share")
    shared = fc.shared_embedding_columns([identity("a", 5), identity("b", 5)], 2)
    columns = [
        age,
        fc.bucketized_column(age, [25]),
        fc.indicator_column(color),
        fc.embedding_column(color, 2),
        fc.crossed_column(["city", "color"], 20),
        pair,
        *shared,
    ]
    with tf.Graph().as_default():
        ids = tf.constant([[0]], tf.int64)
        features = {name: ids for name in ("a", "b")}
        features["word"] = tf.constant([["a"]])
        word = fc.categorical_column_with_hash_bucket("word", 5)
        fc.input_layer(features, [fc.embedding_column(word, 2), *shared])
        fc.linear_model(features, [word])
        variables = [each.op.name for each in tf.global_variables()]
    return [each.name for each in columns] + variables


def main():
    if tf.__version__ != "1.15.5":
        sys.exit(f"TensorFlow 1.15.5 is needed, not {tf.__version__}.")
    columns = {}
    for name in sorted(dense()):
        columns[name], _ = values_of(
            lambda f, name=name: fc.input_layer(f, dense()[name])
        )
    together = [
        *("age", "bucketized", "embedding_sqrtn", "income"),
        *("indicator_" + n for n in ("city", "city_X_color", "color", "zip")),
    ]
    values, names = values_of(
        lambda f: fc.input_layer(f, [dense()[name] for name in together])
    )
    # A cross of raw keys treats all of them as strings.
    together.remove("indicator_city_X_color")
    spec = fc.make_parse_example_spec([dense()[name] for name in together])
    golden = {
        "made_with": "tensorflow " + tf.__version__,
        "features": FEATURES,
        "table": TABLE.tolist(),
        "columns": columns,
        "together": values,
        "variables": names,
        "names": named(),
        "spec": {key: type(each).__name__ for key, each in spec.items()},
    }
    rows = [
        f" {json.dumps(key)}: {json.dumps(value, sort_keys=True)}"
        for key, value in golden.items()
    ]
    with open(os.path.join(HERE, "columns.json"), "w") as file:
        file.write("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
