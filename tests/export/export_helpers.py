"""The model and data that the tests of exports share."""

import contextlib

import keras
import numpy as np
import pytest
from keras import ops

import keras_tpu_estimator as kte

CLASSES = ["cat", "dog", "owl"]


def class_names(ids):
    """The names of class ids, computed on the host."""
    import tensorflow as tf

    return tf.gather(tf.constant(CLASSES), ids)


def classifier(features, labels, mode, params):
    """Three classes of four numbers, with a signature of each kind."""
    hidden = keras.layers.Dense(8, "gelu")(features["x"])
    hidden = keras.layers.BatchNormalization()(
        hidden, training=mode == kte.ModeKeys.TRAIN
    )
    logits = keras.layers.Dense(3)(hidden)
    if mode == kte.ModeKeys.PREDICT:
        scores, ids = ops.top_k(ops.softmax(logits), 2)
        names = kte.outside_compilation(class_names, ids)
        predictions = {"logits": logits, "names": names}
        return kte.TPUEstimatorSpec(
            mode,
            predictions,
            export_outputs={
                "serving_default": kte.export.PredictOutput(predictions),
                "classes": kte.export.ClassificationOutput(scores, names),
                "best": kte.export.RegressionOutput(scores[:, 0]),
            },
        )
    loss = ops.mean(
        keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    )
    if mode == kte.ModeKeys.EVAL:
        return kte.TPUEstimatorSpec(
            mode,
            {"logits": logits},
            loss,
            eval_metrics=(
                lambda labels, logits: {
                    "accuracy": kte.metrics.accuracy(labels, ops.argmax(logits, -1))
                },
                [labels, logits],
            ),
        )
    optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
    return kte.TPUEstimatorSpec(
        mode, {"logits": logits}, loss, optimizer.minimize(loss)
    )


def data(examples=16):
    """Features and labels for the classifier."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(examples, 4)).astype("float32")
    return {"x": x}, x[:, :3].argmax(-1).astype("int32")


def input_fn(params):
    """The data, for `train`, `evaluate` and `predict`."""
    del params
    return data()


class NoRequest:
    """Replaces the process that tries an export."""

    def __init__(self, timeout_secs):
        """Accepts any time limit."""

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def check(self, folder, graphs):
        """Accepts everything."""


@contextlib.contextmanager
def first_request_left_out():
    """Leaves out the first request, which takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keras_tpu_estimator.export.exporting.FirstRequest", NoRequest)
        yield
