"""A script that runs the ready-made estimators and the heads of `tf.estimator`.

    tf115/bin/python tests/tf1/golden/ready_made.py

writes `ready_made.json`. `make_contrib.py` shows how to install TensorFlow 1.15.5.
"""

import json
import os
import sys
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.contrib import estimator as contrib

ROWS, BATCH = 48, 16
WORDS = ["red", "green", "blue"]
LABELS = ["no", "maybe", "yes"]


def features():
    """Returns numbers, strings, ids for an embedding, and weights."""
    numbers = np.random.RandomState(0)
    return {
        "x": numbers.normal(size=(ROWS, 2)).astype("float32"),
        "word": numbers.choice(WORDS + ["other"], size=ROWS).astype(str),
        "id": numbers.randint(7, size=ROWS),
        "weight": (1 + np.arange(ROWS) % 3).astype("float32"),
    }


def labels(kind):
    """Returns labels that depend on the features."""
    given = features()
    score = given["x"][:, 0] + given["id"] / 7
    classes = np.digitize(score, [0, 1])
    return {
        "two": (classes > 0).astype("int64"),
        "three": classes.astype("int64"),
        "words": np.array(LABELS)[classes],
        "two words": np.array(["no", "yes"])[(classes > 0).astype("int64")],
        "number": score.astype("float32"),
        "numbers": np.stack([score, given["x"][:, 1]], 1).astype("float32"),
    }[kind]


def input_fn_of(kind):
    """Returns an input_fn of all rows in order."""

    def input_fn():
        rows = features(), labels(kind)
        return tf.data.Dataset.from_tensor_slices(rows).batch(BATCH)

    return input_fn


def columns():
    """Returns the columns of a linear model and of a network."""
    fc = tf.feature_column
    word = fc.categorical_column_with_vocabulary_list("word", WORDS)
    ids = fc.categorical_column_with_identity("id", 7)
    x = fc.numeric_column("x", shape=2, normalizer_fn=lambda x: x / 2)
    buckets = fc.bucketized_column(fc.numeric_column("weight"), [1.5, 2.5])
    wide = [word, ids, buckets, fc.crossed_column(["word", buckets], 9)]
    return wide, [x, fc.indicator_column(word), fc.embedding_column(ids, 3)]


def made(case, model_dir, **settings):
    """Returns an estimator, and the kind of its labels."""
    wide, deep = columns()
    estimator, mean = tf.estimator, tf.losses.Reduction.SUM_OVER_BATCH_SIZE
    settings.update(model_dir=model_dir, config=estimator.RunConfig(tf_random_seed=1))
    both = {
        "linear_feature_columns": wide,
        "dnn_feature_columns": deep,
        "dnn_hidden_units": [4],
    }
    if case == "network of classes":
        return "words", estimator.DNNClassifier(
            [5, 4],
            deep,
            n_classes=3,
            label_vocabulary=LABELS,
            weight_column="weight",
            batch_norm=True,
            activation_fn=tf.nn.tanh,
            **settings,
        )
    if case == "network of numbers":
        optimizer = tf.train.MomentumOptimizer(0.05, 0.9)
        return "numbers", estimator.DNNRegressor(
            [5],
            deep,
            label_dimension=2,
            optimizer=optimizer,
            loss_reduction=mean,
            **settings,
        )
    if case == "linear model of two classes":
        return "two words", estimator.LinearClassifier(
            wide, weight_column="weight", label_vocabulary=["no", "yes"], **settings
        )
    if case == "linear model of three classes":
        return "three", estimator.LinearClassifier(wide, n_classes=3, **settings)
    if case == "linear model of numbers":
        weights = tf.feature_column.numeric_column("weight")
        return "number", estimator.LinearRegressor(
            wide,
            optimizer=lambda: tf.train.GradientDescentOptimizer(0.01),
            weight_column=weights,
            sparse_combiner="mean",
            **settings,
        )
    if case == "both of numbers":
        return "number", estimator.DNNLinearCombinedRegressor(
            linear_optimizer="SGD", dnn_optimizer="RMSProp", **both, **settings
        )
    if case == "both of two classes":
        return "two", estimator.DNNLinearCombinedClassifier(**both, **settings)
    if case == "head":
        # The original extends an estimator without its warm start.
        own = estimator.Estimator(model_fn, model_dir)
        return "two", contrib.forward_features(contrib.add_metrics(own, rmse), "id")
    raise ValueError(case)


CASES = (
    "network of classes",
    "network of numbers",
    "linear model of two classes",
    "linear model of three classes",
    "linear model of numbers",
    "both of numbers",
    "both of two classes",
    "head",
)


def model_fn(features, labels, mode):
    """Uses a head behind its own layer."""
    head = contrib.binary_classification_head(thresholds=[0.3, 0.7], name="own")
    start = tf.constant_initializer([[0.5], [-0.25]])
    w = tf.get_variable("w", [2, 1], initializer=start)
    return head.create_estimator_spec(
        features,
        mode,
        tf.matmul(features["x"], w),
        labels,
        optimizer=tf.train.GradientDescentOptimizer(0.1),
        regularization_losses=[0.01 * tf.nn.l2_loss(w)],
    )


def rmse(labels, predictions):
    """Returns one more metric."""
    squared = tf.square(tf.cast(labels, tf.float32) - predictions["logistic"][:, 0])
    return {"squared": tf.metrics.mean(squared)}


def write_start(directory, shapes):
    """Writes a checkpoint of initial values that do not depend on seeds of ops."""
    numbers = np.random.RandomState(3)
    with tf.Graph().as_default(), tf.Session() as session:
        for name, shape in sorted(shapes.items()):
            values = numbers.uniform(-0.5, 0.5, size=shape).astype("float32")
            tf.get_variable(name, initializer=tf.constant(values))
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, os.path.join(directory, "model.ckpt"))


def results(case, model_dir, start):
    """Trains, evaluates, predicts and exports; returns JSON values."""
    kind, estimator = made(case, model_dir, warm_start_from=start)
    estimator.train(input_fn_of(kind))
    evaluated = estimator.evaluate(input_fn_of(kind))
    predicted = list(estimator.predict(input_fn_of(kind)))[:3]
    wide, deep = columns()
    spec = tf.feature_column.make_parse_example_spec(wide + deep)
    spec["weight"] = tf.FixedLenFeature([1], tf.float32)
    if case == "head":
        spec["id"] = tf.FixedLenFeature([1], tf.int64)
    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(spec)
    path = estimator.export_saved_model(os.path.join(model_dir, "export"), receiver)
    with tf.Session(graph=tf.Graph()) as session:
        graph = tf.saved_model.load(session, ["serve"], path)
    return {
        "evaluated": {name: float(value) for name, value in evaluated.items()},
        "predicted": [
            {name: json_of(value) for name, value in row.items()} for row in predicted
        ],
        "values": {
            name: estimator.get_variable_value(name).tolist()
            for name in estimator.get_variable_names()
        },
        "signatures": {
            name: [
                signature.method_name,
                {key: each.dtype for key, each in signature.outputs.items()},
            ]
            for name, signature in graph.signature_def.items()
        },
        "summaries": sorted(tags_in(model_dir)),
    }


def json_of(value):
    """Returns an array as JSON."""
    value = np.asarray(value)
    return value.astype(str if value.dtype.kind in "SO" else value.dtype).tolist()


def tags_in(model_dir):
    """Returns the tags of the summaries of a training."""
    tf.summary.FileWriterCache.clear()
    return {
        value.tag
        for path in tf.gfile.Glob(os.path.join(model_dir, "events*"))
        for event in tf.train.summary_iterator(path)
        for value in event.summary.value
        if value.tag not in ("global_step/sec", "input_wait")
    }


def main():
    if tf.__version__ != "1.15.5":
        sys.exit(f"TensorFlow 1.15.5 is needed, not {tf.__version__}.")
    golden = {"made_with": "tensorflow " + tf.__version__}
    for case in CASES:
        kind, first = made(case, tempfile.mkdtemp())
        first.train(input_fn_of(kind), steps=1)
        shapes = {
            name: np.shape(first.get_variable_value(name))
            for name in first.get_variable_names()
            if name.startswith(("dnn", "linear", "w"))
            and name.rsplit("/", 1)[-1]
            in (
                "kernel",
                "bias",
                "weights",
                "bias_weights",
                "embedding_weights",
                "gamma",
                "beta",
                "w",
            )
        }
        start = tempfile.mkdtemp()
        write_start(start, shapes)
        golden[case] = results(case, tempfile.mkdtemp(), start)
        golden[case]["start"] = shapes
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "ready_made.json"), "w") as file:
        json.dump(golden, file, sort_keys=True)
        file.write("\n")


if __name__ == "__main__":
    main()
