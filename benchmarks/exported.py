"""The speed of exports and of requests to exported models, compared with Keras."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_tpu_estimator as kte
from benchmarks.agreement import check_equal
from benchmarks.datasets import batches
from benchmarks.estimators import estimator
from benchmarks.models import Mlp
from benchmarks.table import Goal, Row
from benchmarks.timing import median_seconds
from examples import digits

_CALLS = 200
_REPETITIONS = 15


def rows() -> Iterator[Row]:
    """Returns rows for the time of an export, and for requests per second by size."""
    with tempfile.TemporaryDirectory() as directory:
        yield _export(directory)
    mlp = Mlp((784, 128, 10), batch=128)
    with tempfile.TemporaryDirectory() as directory:
        trained = estimator(mlp, directory)
        trained.train(lambda params: batches(mlp, 1_280), steps=10)
        model = mlp.keras_model()
        features = tf.TensorSpec([None, 784], tf.float32)
        weights = os.path.join(directory, "mlp.weights.h5")
        model.load_weights(kte.export_keras(trained, weights, features))
        ours = trained.export_saved_model(directory, _receiver_fn)
        peer = os.path.join(directory, "peer")
        model.export(peer, verbose=False)
        for size in (1, 8, 64):
            yield _requests(mlp, size, ours, peer)


def _export(directory: str) -> Row:
    """Returns a row for the first export of a process, of the digits example."""
    trained = digits.make_estimator(directory)
    trained.train(digits.train_input_fn, steps=10)
    image = tf.TensorSpec([None, 8, 8, 1], tf.float32)
    file = os.path.join(directory, "digits.keras")
    model = keras.models.load_model(kte.export_keras(trained, file, {"image": image}))
    receiver_fn = kte.export.build_raw_serving_input_receiver_fn({"image": image})
    start = time.perf_counter()
    trained.export_saved_model(os.path.join(directory, "ours"), receiver_fn)
    middle = time.perf_counter()
    model.export(os.path.join(directory, "peer"), verbose=False)
    return Row(
        "export of the digits example, tried once, against Keras export, not tried",
        middle - start,
        time.perf_counter() - middle,
        "s",
        Goal("ours", most=10),
    )


def _requests(mlp: Mlp, size: int, ours: str, peer: str) -> Row:
    x = tf.constant(np.ones((size, mlp.sizes[0]), "float32"))
    functions = {
        "ours": _answers(tf.saved_model.load(ours, tags=["serve"]), x),
        "Keras": _answers(tf.saved_model.load(peer), x),
    }
    seconds = median_seconds(
        {name: _repeated(f) for name, f in functions.items()}, _REPETITIONS
    )
    check_equal("requests", {n: f() for n, f in functions.items()}, 0.01)
    return Row(
        f"requests of {size}, {mlp}, against Keras export",
        _CALLS / seconds["ours"],
        _CALLS / seconds["Keras"],
        "requests/s",
        Goal("ratio", least=0.8),
    )


def _receiver_fn() -> kte.export.TensorServingInputReceiver:
    x = tf.compat.v1.placeholder(tf.float32, [None, 784], name="x")
    return kte.export.TensorServingInputReceiver(x, {"x": x})


def _answers(model: Any, x: tf.Tensor) -> Callable[[], np.ndarray]:
    """Returns a function that sends a request to a loaded model."""
    signature = model.signatures["serving_default"]
    (name,) = signature.structured_input_signature[1]

    def answer() -> np.ndarray:
        (output,) = signature(**{name: x}).values()
        return output.numpy()

    # The signature has no reference to its model.
    answer.model = model
    return answer


def _repeated(function: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(_CALLS):
            function()

    return run
