"""A script that makes estimators of compiled models of `tf.keras`.

    tf115/bin/python tests/tf1/golden/keras_models.py

writes `keras_models.json`. `make_contrib.py` shows how to install TensorFlow 1.15.5.
"""

import json
import os
import sys
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

ROWS, BATCH = 24, 8
numbers = np.random.RandomState(0)
X = numbers.normal(size=(ROWS, 3)).astype("float32")
SCORE = X.sum(1, keepdims=True)
CLASSES = (SCORE[:, 0] > 0).astype("int64") + (SCORE[:, 0] > 1)
WEIGHTS = (1 + np.arange(ROWS) % 3).astype("float32")


def functional(optimizer="adam", outputs=("y",), **options):
    """Returns a model of one input with the outputs of these names."""
    layers = tf.keras.layers
    x = tf.keras.Input((3,), name="x")
    hidden = layers.Dense(4, activation="relu", name="hidden")(x)
    hidden = layers.BatchNormalization(name="normal")(hidden)
    made = [layers.Dense(1, name=name)(hidden) for name in outputs]
    model = tf.keras.Model(x, made if len(made) > 1 else made[0])
    model.compile(optimizer, **options)
    return model


def sequential(optimizer="sgd", **options):
    """Returns a classifier with a regularizer and a layer that differs by mode."""
    layers = tf.keras.layers
    model = tf.keras.Sequential()
    penalty = tf.keras.regularizers.l2(0.1)
    model.add(
        layers.Dense(4, "tanh", input_shape=(3,), name="a", kernel_regularizer=penalty)
    )
    model.add(layers.Dropout(0.0, name="b"))
    model.add(layers.Dense(3, "softmax", name="c"))
    options = {"loss": "sparse_categorical_crossentropy", **options}
    model.compile(optimizer, **options)
    return model


# The features, the labels, and the model of each case.
CASES = {
    "functional": (
        {"x": X},
        SCORE,
        lambda: functional(loss="mse", metrics=["mae"]),
    ),
    "sequential": (X, CLASSES, lambda: sequential(metrics=["accuracy"])),
    "optimizer of tf.train": (
        X,
        CLASSES,
        lambda: sequential(tf.train.MomentumOptimizer(0.1, 0.9)),
    ),
    "optimizer with a schedule": (
        {"x": X},
        SCORE,
        lambda: functional(
            tf.keras.optimizers.SGD(
                tf.keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5),
                momentum=0.9,
                nesterov=True,
            ),
            loss=tf.keras.losses.Huber(),
        ),
    ),
    "two outputs": (
        {"x": X},
        {"y": SCORE, "z": SCORE**2},
        lambda: functional(
            outputs=("y", "z"),
            loss={"y": "mse", "z": "mae"},
            loss_weights={"y": 1.0, "z": 0.5},
            metrics={"y": ["mae"]},
        ),
    ),
    "weights": (
        {"features": {"x": X}, "sample_weights": WEIGHTS},
        SCORE,
        lambda: functional(loss="mse", weighted_metrics=["mae"]),
    ),
}


def results(case, model_dir):
    """Returns the numbers of a case."""
    features, labels, make = CASES[case]
    tf.keras.backend.clear_session()
    model = make()
    numbers = np.random.RandomState(1)
    start = [numbers.normal(size=w.shape) for w in model.get_weights()]
    model.set_weights([np.abs(w) / 2 for w in start])
    config = tf.estimator.RunConfig(model_dir=model_dir, tf_random_seed=1)
    estimator = tf.keras.estimator.model_to_estimator(model, config=config)

    inputs = features.get("features", features) if isinstance(features, dict) else X

    def input_fn(epochs=1):
        data = tf.data.Dataset.from_tensor_slices((features, labels))
        return data.repeat(epochs).batch(BATCH)

    def request_fn():
        return tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(BATCH)

    def receiver_fn():
        named = inputs if isinstance(inputs, dict) else {model.input_names[0]: inputs}
        specs = {
            name: tf.placeholder(value.dtype, [None, *value.shape[1:]])
            for name, value in named.items()
        }
        return tf.estimator.export.ServingInputReceiver(specs, specs)

    def exported(folder):
        path = estimator.export_saved_model(
            os.path.join(model_dir, folder), receiver_fn
        )
        with tf.Session(graph=tf.Graph()) as session:
            graph = tf.saved_model.loader.load(session, ["serve"], path)
        path = os.path.join(tf.compat.as_str(path), "variables", "variables")
        return graph.signature_def, values_of(tf.train.load_checkpoint(path))

    before = estimator.evaluate(input_fn)
    signatures, start = exported("start")
    estimator.train(lambda: input_fn(2), max_steps=5)
    evaluated = estimator.evaluate(input_fn)
    predicted = list(estimator.predict(request_fn))
    latest = tf.train.load_checkpoint(estimator.latest_checkpoint())
    return {
        "before": {name: float(value) for name, value in before.items()},
        "start": start,
        "evaluated": {name: float(value) for name, value in evaluated.items()},
        "predicted": {
            name: np.ravel([row[name] for row in predicted]).tolist()
            for name in predicted[0]
        },
        "values": values_of(latest),
        "signatures": {
            name: [signature.method_name, sorted(signature.outputs)]
            for name, signature in signatures.items()
        },
    }


def values_of(reader):
    """Returns the values of a checkpoint, without objects of TensorFlow."""
    names = sorted(reader.get_variable_to_shape_map())
    return {
        name: np.ravel(reader.get_tensor(name)).tolist()
        for name in names
        if not name.startswith("_CHECKPOINTABLE")
    }


if __name__ == "__main__":
    # With arguments it runs on this package: the file of results, and the cases.
    if len(sys.argv) == 1 and tf.__version__ != "1.15.5":
        sys.exit(f"TensorFlow 1.15.5 is needed, not {tf.__version__}.")
    folder = os.path.dirname(os.path.abspath(__file__))
    path = sys.argv[1] if sys.argv[1:] else os.path.join(folder, "keras_models.json")
    cases = sys.argv[2:] or CASES
    found = {case: results(case, tempfile.mkdtemp()) for case in cases}
    with open(path, "w") as file:
        lines = [f" {json.dumps(n)}: {json.dumps(v)}" for n, v in sorted(found.items())]
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
