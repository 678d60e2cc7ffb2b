"""A script that trains, evaluates, predicts and exports with each head of TF1.

    tf115/bin/python tests/tf1/golden/heads.py

writes `heads.json`. `make_contrib.py` shows how to install TensorFlow 1.15.5.
"""

import importlib
import json
import os
import sys
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.contrib import estimator as contrib

canned = importlib.import_module("tensorflow.python.estimator.canned.head")
public = tf.estimator
ROWS, BATCH = 24, 8
WORDS = ["no", "yes"]
SUM = tf.losses.Reduction.SUM


def rows():
    """Returns features and labels of all kinds."""
    numbers = np.random.RandomState(0)
    x = numbers.normal(size=(ROWS, 3)).astype("float32")
    score = x[:, 0] + x[:, 1] ** 2 / 2
    two = (score > 0.3).astype("int64")
    labels = {
        "two": two,
        "words": np.array(WORDS)[two],
        "three": np.digitize(score, [0, 1]).astype("int64"),
        "several": np.stack([two, x[:, 2] > 0], 1).astype("int64"),
        "number": score.astype("float32"),
        "numbers": np.stack([score, x[:, 2]], 1).astype("float32"),
        "count": np.round(np.abs(score) * 2).astype("float32"),
        "share": (1 / (1 + np.exp(-score))).astype("float32"),
    }
    weight = (1 + np.arange(ROWS) % 3).astype("float32")
    return {"x": x, "weight": weight}, labels


def both(single, many):
    """Returns a head of a binary and a regression head."""
    binary, regression = single
    return many(
        [binary(name="first"), regression(label_dimension=2, name="second")], [1.0, 0.5]
    )


PUBLIC = public.BinaryClassHead, public.RegressionHead
CONTRIB = contrib.binary_classification_head, contrib.regression_head
TWO = {"first": "two", "second": "numbers"}
# The labels, the number of logits, and the head of each case.
CASES = {
    "BinaryClassHead": ("two", 1, lambda: public.BinaryClassHead()),
    "BinaryClassHead, all": (
        "words",
        1,
        lambda: public.BinaryClassHead("weight", [0.3, 0.6], WORDS, "sum", name="own"),
    ),
    "MultiClassHead": ("three", 3, lambda: public.MultiClassHead(3, "weight")),
    "MultiLabelHead": (
        "several",
        2,
        lambda: public.MultiLabelHead(
            2, "weight", [0.4], classes_for_class_based_metrics=[1], name="own"
        ),
    ),
    "RegressionHead": ("numbers", 2, lambda: public.RegressionHead(2, "weight")),
    "PoissonRegressionHead": ("count", 1, lambda: public.PoissonRegressionHead()),
    "LogisticRegressionHead": ("share", 1, lambda: public.LogisticRegressionHead()),
    "MultiHead": (TWO, 3, lambda: both(PUBLIC, public.MultiHead)),
    "multi_label_head": (
        "several",
        2,
        lambda: contrib.multi_label_head(
            2, "weight", [0.4], classes_for_class_based_metrics=[0, 1]
        ),
    ),
    "multi_label_head of words": (
        "sparse words",
        2,
        lambda: contrib.multi_label_head(
            2,
            label_vocabulary=WORDS,
            loss_reduction=SUM,
            classes_for_class_based_metrics=["yes"],
            name="own",
        ),
    ),
    "poisson_regression_head": (
        "count",
        1,
        lambda: contrib.poisson_regression_head("weight", compute_full_loss=False),
    ),
    "logistic_regression_head": (
        "share",
        1,
        lambda: contrib.logistic_regression_head("weight", name="own"),
    ),
    "multi_head": (TWO, 3, lambda: both(CONTRIB, contrib.multi_head)),
    "canned binary": (
        "two",
        1,
        lambda: canned._binary_logistic_head_with_sigmoid_cross_entropy_loss("weight"),
    ),
    "canned classes": (
        "three",
        3,
        lambda: canned._multi_class_head_with_softmax_cross_entropy_loss(3),
    ),
    "canned numbers": ("number", 1, lambda: canned._regression_head()),
}


def input_fn_of(kind):
    """Returns an input_fn of all rows in order."""

    def sparse(features, labels):
        words = tf.gather(WORDS, tf.range(2, dtype=tf.int64) * tf.ones_like(labels))
        found = tf.where(labels > 0)
        shape = tf.shape(labels, out_type=tf.int64)
        return features, tf.SparseTensor(found, tf.gather_nd(words, found), shape)

    def input_fn():
        features, known = rows()
        if isinstance(kind, dict):
            labels = {name: known[each] for name, each in kind.items()}
        else:
            labels = known["several" if kind == "sparse words" else kind]
        data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(BATCH)
        return data.map(sparse) if kind == "sparse words" else data

    return input_fn


def estimator_of(case, model_dir):
    """Returns an estimator with a head behind a linear layer."""
    _, units, make = CASES[case]

    def model_fn(features, labels, mode):
        start = tf.constant_initializer(np.sin(np.arange(3 * units)).reshape(3, units))
        logits = tf.layers.dense(features["x"], units, kernel_initializer=start)
        options = {}
        if case in ("BinaryClassHead, all", "MultiLabelHead", "multi_label_head"):
            penalty = tf.nn.l2_loss(tf.trainable_variables()[0])
            options["regularization_losses"] = [0.01 * penalty]
        return make().create_estimator_spec(
            features,
            mode,
            logits,
            labels,
            train_op_fn=lambda loss: tf.train.GradientDescentOptimizer(0.1).minimize(
                loss, tf.train.get_global_step()
            ),
            **options,
        )

    return tf.estimator.Estimator(model_fn, model_dir)


def results(case, model_dir):
    """Trains, evaluates, predicts and exports; returns JSON values."""
    kind = CASES[case][0]
    estimator = estimator_of(case, model_dir)
    estimator.train(input_fn_of(kind))
    evaluated = estimator.evaluate(input_fn_of(kind))
    predicted = next(estimator.predict(input_fn_of(kind)))
    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(
        {"x": tf.FixedLenFeature([3], tf.float32)}
    )
    path = estimator.export_saved_model(os.path.join(model_dir, "export"), receiver)
    with tf.Session(graph=tf.Graph()) as session:
        graph = tf.saved_model.load(session, ["serve"], path)
    return {
        "evaluated": {name: float(value) for name, value in evaluated.items()},
        "predicted": {
            name if isinstance(name, str) else "/".join(name): json_of(value)
            for name, value in predicted.items()
        },
        "kernel": estimator.get_variable_value("dense/kernel").tolist(),
        "signatures": {
            name: [
                signature.method_name,
                {key: each.dtype for key, each in signature.outputs.items()},
            ]
            for name, signature in graph.signature_def.items()
        },
    }


def json_of(value):
    """Returns an array as lists of numbers and text."""
    return [
        each.decode() if isinstance(each, bytes) else each
        for each in np.ravel(value).tolist()
    ]


if __name__ == "__main__":
    if tf.__version__ != "1.15.5":
        sys.exit(f"TensorFlow 1.15.5 is needed, not {tf.__version__}.")
    found = {case: results(case, tempfile.mkdtemp()) for case in CASES}
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "heads.json")
    with open(path, "w") as file:
        lines = [f" {json.dumps(n)}: {json.dumps(v)}" for n, v in sorted(found.items())]
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
