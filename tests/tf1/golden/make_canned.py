"""Writes `canned/`: checkpoints and results of DNNLinearCombinedClassifier.

It needs TensorFlow 1.15.5, as `make_contrib.py` does:

    tf115/bin/python tests/tf1/golden/make_canned.py

`model.ckpt-0` has the initial values, and `model.ckpt-20` the values after 20 steps.
`canned.json` has the losses of these steps, the evaluations and predictions of both
checkpoints, and the signatures of an export.
"""

import ast
import glob
import json
import os
import shutil
import sys
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLE = os.path.join(HERE, "../../../examples/wide_and_deep.py")
DIRECTORY = os.path.join(HERE, "canned")
STEPS, BATCH = 20, 32


def data_of_example():
    """Returns the function `people` of the example, which Python 3.7 cannot import."""
    with open(EXAMPLE) as file:
        tree = ast.parse(file.read())
    names = {"np": np}
    tree.body = [
        node
        for node in tree.body
        if getattr(node, "name", "") == "people"
        or isinstance(node, ast.Assign)
        and isinstance(node.value, ast.List)
    ]
    exec(compile(tree, EXAMPLE, "exec"), names)
    return names["people"], names["EDUCATION"]


people, EDUCATION = data_of_example()


def columns():
    """Returns the columns of the linear model and of the network."""
    fc = tf.feature_column
    age = fc.numeric_column("age")
    scaled = [
        fc.numeric_column("age", normalizer_fn=lambda x: (x - 44) / 15),
        fc.numeric_column("hours", normalizer_fn=lambda x: (x - 35) / 15),
    ]
    education = fc.categorical_column_with_vocabulary_list("education", EDUCATION)
    occupation = fc.categorical_column_with_hash_bucket("occupation", 20)
    wide = [
        fc.bucketized_column(age, [25, 35, 45, 55]),
        education,
        occupation,
        fc.crossed_column(["education", "occupation"], 50),
    ]
    deep = [
        *scaled,
        fc.indicator_column(education),
        fc.embedding_column(occupation, 4),
    ]
    return wide, deep


def classifier(model_dir, **settings):
    """Returns the original classifier with its defaults, except for the units."""
    wide, deep = columns()
    return tf.estimator.DNNLinearCombinedClassifier(
        model_dir=model_dir,
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_hidden_units=[16, 8],
        config=tf.estimator.RunConfig(tf_random_seed=1),
        **settings,
    )


def input_fn(seed, size, batch):
    """Returns batches of people, in order."""
    dataset = tf.data.Dataset.from_tensor_slices(people(size, seed))
    return dataset.batch(batch)


class Losses(tf.train.SessionRunHook):
    """A hook that records the loss of each step."""

    def __init__(self):
        self.losses = []

    def begin(self):
        graph = tf.get_default_graph()
        self._loss = graph.get_tensor_by_name("head/weighted_loss/Sum:0")

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        self.losses.append(float(run_values.results))


def results(estimator, step):
    """Evaluates and predicts with one checkpoint."""
    path = os.path.join(estimator.model_dir, f"model.ckpt-{step}")
    metrics = estimator.evaluate(lambda: input_fn(2, 256, 64), checkpoint_path=path)
    predictions = list(
        estimator.predict(lambda: input_fn(3, 4, 4), checkpoint_path=path)
    )
    return {
        "metrics": {key: float(value) for key, value in metrics.items()},
        "predictions": {
            key: [np.asarray(each[key]).tolist() for each in predictions]
            for key in ("logits", "logistic", "probabilities", "class_ids")
        },
        "classes": [each["classes"][0].decode() for each in predictions],
    }


def signatures(estimator):
    """Returns the names, dtypes and shapes of an export."""
    wide, deep = columns()
    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(
        tf.feature_column.make_parse_example_spec(wide + deep)
    )
    path = estimator.export_saved_model(tempfile.mkdtemp(), receiver)
    with tf.Session(graph=tf.Graph()) as session:
        graph = tf.saved_model.load(session, ["serve"], path)
    return {
        name: {
            "method": each.method_name,
            "outputs": {
                key: tf.as_dtype(value.dtype).name
                for key, value in sorted(each.outputs.items())
            },
        }
        for name, each in sorted(graph.signature_def.items())
    }


def main():
    if tf.__version__ != "1.15.5":
        sys.exit(f"TensorFlow 1.15.5 is needed, not {tf.__version__}.")
    with tempfile.TemporaryDirectory() as model_dir:
        hook = Losses()
        estimator = classifier(model_dir)
        estimator.train(lambda: input_fn(1, STEPS * BATCH, BATCH), [hook], steps=STEPS)
        golden = {
            "made_with": "tensorflow " + tf.__version__,
            "losses": hook.losses,
            "0": results(estimator, 0),
            "20": results(estimator, STEPS),
            "signatures": signatures(estimator),
        }
        shutil.rmtree(DIRECTORY, ignore_errors=True)
        os.mkdir(DIRECTORY)
        for pattern in ("checkpoint", "model.ckpt-*.[di]*"):
            for path in glob.glob(os.path.join(model_dir, pattern)):
                shutil.copy(path, DIRECTORY)
    with open(os.path.join(HERE, "canned.json"), "w") as file:
        json.dump(golden, file, indent=1, sort_keys=True)
        file.write("\n")


if __name__ == "__main__":
    main()
