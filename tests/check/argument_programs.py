"""Small TF1 scripts with strings, tables and sparse features.

The checker and the runner use the same scripts. All of them run with TensorFlow 1.15.
"""

import dataclasses

PROGRAM = """
import sys

import numpy as np
import tensorflow as tf

WORDS = sys.argv[1] + "/words.txt"
with open(WORDS, "w") as file:
    file.write("7\\n8\\n")
fc = tf.feature_column
NAMES = ["a", "b"]
X = fc.numeric_column("x", [3])


def example(word, number):
    feature = {
        "s": tf.train.Feature(bytes_list=tf.train.BytesList(value=[word])),
        "n": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
    }
    features = tf.train.Features(feature=feature)
    return tf.train.Example(features=features).SerializeToString()


def parsed(batch, spec):
    features = tf.parse_example(batch, spec)
    return dict(features, x=tf.ones([4, 3])), tf.ones([4, 1])


def input_fn():
    features = {"x": np.ones([8, 3], "float32"), "n": np.array([1, 2] * 4)}
    strings = dict(features, s=np.array(["a", "b"] * 4))
    labels = np.ones([8, 1], "float32")
    examples = [example(b"a", 1), example(b"b", 2)] * 4
    INPUT
    return data.batch(4) if len(data.output_shapes[1]) == 1 else data


def model_fn(features, labels, mode):
    x = features["x"]
    predictions = {}
    MODEL
    y = tf.layers.dense(x, 1)
    predictions["y"] = y
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions=predictions)
    loss = tf.losses.mean_squared_error(labels, y)
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


estimator = tf.estimator.Estimator(model_fn, sys.argv[1] + "/model")
estimator.train(input_fn, steps=1)
next(estimator.predict(input_fn))
"""
NUMBERS = "data = tf.data.Dataset.from_tensor_slices((features, labels))"
STRINGS = "data = tf.data.Dataset.from_tensor_slices((strings, labels))"


def mapped(changed: str, data: str = STRINGS) -> str:
    """An input with changed features, which the code calls `f`."""
    change = f"lambda f, y: (dict(f, {changed}), y)"
    return f"{data}\n    data = data.batch(4).map({change})"


def examples(spec: str, changed: str = "") -> str:
    """An input of parsed examples."""
    data = (
        "data = tf.data.Dataset.from_tensor_slices(examples).batch(4)\n"
        f"    data = data.map(lambda batch: parsed(batch, {spec}))"
    )
    if changed:
        change = f"lambda f, y: (dict(f, {changed}), y)"
        data += f"\n    data = data.map({change})"
    return data


def layer(column: str) -> str:
    """A `model_fn` that reads a dense column."""
    return f"x = fc.input_layer(features, [X, {column}])"


def embedded(column: str) -> str:
    """A `model_fn` that reads a column of ids."""
    return layer(f"fc.embedding_column({column}, 2)")


@dataclasses.dataclass(frozen=True)
class Program:
    """A script, and its verdicts.

    Attributes:
        model: The code of its `model_fn`.
        data: The code of its `input_fn`. Defaults to features of numbers.
        stops: Whether the runner stops. Defaults to `False`.
        verdict: The checker's verdict: "runs", "depends" or "refused". Defaults
            to "runs".
        is_quick: Whether every run of the tests runs it. Defaults to `False`.
    """

    model: str
    data: str = NUMBERS
    stops: bool = False
    verdict: str = "runs"
    is_quick: bool = False

    @property
    def text(self) -> str:
        """The script."""
        text = PROGRAM.replace("INPUT", self.data)
        return text.replace("MODEL", self.model)


def runs(model: str, data: str = NUMBERS, **facts: bool) -> Program:
    """A script that runs, and about which the checker reports nothing."""
    return Program(model, data, **facts)


def refused(model: str, data: str = STRINGS, **facts: bool) -> Program:
    """A script that stops, which the checker reports."""
    return Program(model, data, True, "refused", **facts)


def depends(model: str, data: str, stops: bool = False, **facts: bool) -> Program:
    """A script whose source does not show whether it stops."""
    return Program(model, data, stops, "depends", **facts)


_LIST = "fc.categorical_column_with_vocabulary_list"
_FILE = "fc.categorical_column_with_vocabulary_file"
_HASH = "fc.categorical_column_with_hash_bucket"
_IDS = 'fc.categorical_column_with_identity("n", 5)'
_AGES = 'fc.bucketized_column(fc.numeric_column("n"), [1.5])'
_TABLE = "tf.contrib.lookup.index_table_from_tensor(NAMES)"
_STRING = '{"s": tf.FixedLenFeature([], tf.string)}'
_DEFAULT = '{"s": tf.FixedLenFeature([], tf.string, default_value="")}'
_VARIABLE = '{"n": tf.VarLenFeature(tf.int64)}'
_SPARSE = "tf.sparse.from_dense(tf.cast(f['x'], tf.int64))"

PROGRAMS = {
    # Columns.
    "list of strings": depends(embedded(f'{_LIST}("s", NAMES)'), STRINGS),
    "list with a dtype": depends(
        embedded(f'{_LIST}("s", NAMES, dtype=tf.string)'), STRINGS
    ),
    "list in a linear model": depends(
        f'x = fc.linear_model(features, [X, {_LIST}("s", ["a"])])', STRINGS
    ),
    "list of numbers": runs(embedded(f'{_LIST}("n", [1, 2])')),
    "list by range": runs(embedded(f'{_LIST}("n", list(range(3)))')),
    "list with a default": runs(embedded(f'{_LIST}("n", [1], tf.int64, 0)')),
    "list of numbers and more": depends(
        embedded(f'{_LIST}("n", [1], num_oov_buckets=2)'),
        NUMBERS,
        stops=True,
        is_quick=True,
    ),
    "file of strings": depends(embedded(f'{_FILE}("s", WORDS, 2)'), STRINGS),
    "file of numbers": depends(
        embedded(f'{_FILE}("n", WORDS, 2, dtype=tf.int64)'),
        NUMBERS,
        stops=True,
    ),
    "hashed strings": depends(embedded(f'{_HASH}("s", 5)'), STRINGS),
    "hashed numbers": depends(
        embedded(f'{_HASH}("n", 5, dtype=tf.int64)'), NUMBERS, True
    ),
    "hashed in a layer of Keras": depends(
        f"layer = tf.keras.layers.DenseFeatures([X, fc.indicator_column("
        f'{_HASH}("s", 5))])\n    x = layer(features)',
        STRINGS,
    ),
    "crossed strings": depends(
        layer('fc.indicator_column(fc.crossed_column(["s", "n"], 5))'),
        STRINGS,
        stops=False,
    ),
    "crossed numbers": depends(
        layer('fc.indicator_column(fc.crossed_column(["n", "m"], 5))'),
        mapped("m=f['n']", NUMBERS),
    ),
    "crossed columns": runs(
        layer(f"fc.indicator_column(fc.crossed_column([{_IDS}, {_AGES}], 5))")
    ),
    "numbers": runs(
        f"ids = {_IDS}\n"
        "    shared = fc.shared_embedding_columns([ids], 2)\n    "
        + layer(f"fc.indicator_column(ids), *shared, {_AGES}"),
        is_quick=True,
    ),
    # Features.
    "strings that nothing reads": runs("pass", STRINGS, is_quick=True),
    "strings in predictions": runs('predictions["s"] = features["s"]', STRINGS),
    "strings compared": depends(
        'x += tf.to_float(tf.equal(features["s"], "a"))[:, None]', STRINGS
    ),
    "parsed strings": depends(
        'predictions["s"] = features["s"]', examples(_STRING), stops=False
    ),
    "parsed strings, hashed": depends(
        "pass",
        examples(_DEFAULT, 's=tf.string_to_hash_bucket_fast(f["s"], 5)'),
        is_quick=True,
    ),
    "parsed strings in a column": depends(
        embedded(f'{_LIST}("s", NAMES)'), examples(_STRING)
    ),
    "sparse": depends("pass", mapped(f"i={_SPARSE}", NUMBERS), is_quick=True),
    "sparse, made dense": depends(
        "pass", mapped(f"i=tf.sparse.to_dense({_SPARSE})", NUMBERS)
    ),
    "ids of any number": depends(embedded(_IDS), examples(_VARIABLE)),
    "ids of any number, made dense": depends(
        embedded(_IDS),
        examples(_VARIABLE, 'n=tf.sparse_tensor_to_dense(f["n"], -1)'),
    ),
    "specs of columns": depends(
        embedded(_IDS),
        examples(f"fc.make_parse_example_spec([{_IDS}])"),
    ),
    "specs of numbers": depends(
        layer('fc.numeric_column("n")'),
        examples(
            'fc.make_parse_example_spec([fc.numeric_column("n", dtype=tf.int64)])'
        ),
    ),
    # Operations in a `model_fn` and in an `input_fn`.
    "numbers as strings": depends(
        'predictions["s"] = tf.as_string(features["n"])',
        NUMBERS,
    ),
    "numbers as strings in input_fn": runs(
        'x += features["n"][:, None]',
        mapped("n=tf.string_to_number(tf.as_string(f['n']))", NUMBERS),
    ),
    "hashed in model_fn": depends(
        'hashed = tf.string_to_hash_bucket_fast(features["s"], 5)\n'
        "    x += tf.to_float(hashed)[:, None]",
        STRINGS,
    ),
    "hashed in input_fn": runs(
        'x += tf.to_float(features["s"])[:, None]',
        mapped("s=tf.string_to_hash_bucket_fast(f['s'], 5)"),
    ),
    "table in model_fn": depends(
        f'x += tf.to_float({_TABLE}.lookup(features["s"]))[:, None]', STRINGS
    ),
    "table in input_fn": runs(
        'x += tf.to_float(features["s"])[:, None]',
        f"table = {_TABLE}\n    " + mapped("s=table.lookup(f['s'])"),
    ),
    "file in model_fn": depends(
        "table = tf.contrib.lookup.index_table_from_file(WORDS)\n"
        '    x += tf.to_float(table.lookup(features["s"]))[:, None]',
        STRINGS,
    ),
    "file in input_fn": runs(
        'x += tf.to_float(features["s"])[:, None]',
        "table = tf.contrib.lookup.index_table_from_file(WORDS)\n    "
        + mapped("s=table.lookup(f['s'])"),
    ),
    "names of classes": depends(
        'predictions["s"] = tf.gather(NAMES + ["c"], features["n"])',
        NUMBERS,
        is_quick=True,
    ),
    "constant strings": depends('predictions["s"] = tf.constant(["a"] * 4)', NUMBERS),
    "constant strings in a summary": depends(
        'tf.summary.text("note", tf.constant("a"))', NUMBERS
    ),
    "sparse lookups": depends(
        'table = tf.get_variable("table", [5, 3])\n'
        '    ids = tf.sparse.from_dense(features["n"][:, None])\n'
        "    x += tf.nn.embedding_lookup_sparse(table, ids, None)",
        NUMBERS,
        stops=True,
    ),
    "safe sparse lookups": depends(
        'table = tf.get_variable("table", [5, 3])\n'
        '    ids = tf.sparse.from_dense(features["n"][:, None])\n'
        "    x += tf.nn.safe_embedding_lookup_sparse(table, ids, None)",
        NUMBERS,
        stops=True,
    ),
}
