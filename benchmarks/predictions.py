"""The speed of prediction with small and large batches, compared with Keras."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

import keras_tpu_estimator as kte
from benchmarks import best_of_keras
from benchmarks.agreement import check_equal
from benchmarks.datasets import batches
from benchmarks.estimators import estimator
from benchmarks.models import Mlp
from benchmarks.table import Goal, Row
from benchmarks.timing import median_seconds

_EXAMPLES = 102_400
_REPETITIONS = 9
_BATCHES = (64, 128, 1024)


def rows() -> Iterator[Row]:
    """Returns rows for the examples per second by batch size and kind of input."""
    for batch in _BATCHES:
        mlp = Mlp((32, 32, 2), batch)
        dataset = batches(mlp, _EXAMPLES)
        peers = best_of_keras.models(mlp)
        for peer in peers.values():
            peer.fit(dataset.take(20), shuffle=False, verbose=0)
        with tempfile.TemporaryDirectory() as directory:
            ours = estimator(mlp, directory)
            ours.train(lambda params, dataset=dataset: dataset, steps=20)
            yield from _of_input(
                f"tf.data, {mlp}",
                peers,
                *_from_dataset(dataset, ours),
            )
            yield from _of_input(
                f"arrays, {mlp}",
                peers,
                *_from_arrays(mlp, ours),
            )


def _from_dataset(
    dataset: Any, ours: kte.TPUEstimator
) -> tuple[Callable[..., Iterator[Any]], Callable[[keras.Model], np.ndarray]]:
    """Returns functions of both contestants that predict a dataset."""
    features = dataset.map(lambda x, y: x)

    def our_predictions(**options: Any) -> Iterator[Any]:
        return ours.predict(lambda params: features, **options)

    return our_predictions, lambda peer: peer.predict(features, verbose=0)


def _from_arrays(
    mlp: Mlp, ours: kte.TPUEstimator
) -> tuple[Callable[..., Iterator[Any]], Callable[[keras.Model], np.ndarray]]:
    """Returns functions of both contestants that predict one array."""
    x, _ = mlp.data(_EXAMPLES)

    def input_fn(params: Any) -> Iterator[np.ndarray]:
        for start in range(0, len(x), params["batch_size"]):
            yield x[start : start + params["batch_size"]]

    def our_predictions(**options: Any) -> Iterator[Any]:
        return ours.predict(input_fn, **options)

    return our_predictions, lambda peer: peer.predict(x, mlp.batch, verbose=0)


def _of_input(
    what: str,
    peers: Mapping[str, keras.Model],
    our_predictions: Callable[..., Iterator[Any]],
    keras_array: Callable[[keras.Model], np.ndarray],
) -> Iterator[Row]:
    """Returns rows for predictions as one array, and one at a time."""

    def our_array() -> np.ndarray:
        parts = our_predictions(yield_single_examples=False)
        return np.concatenate([part["logits"] for part in parts])

    def our_examples() -> list[np.ndarray]:
        return [row["logits"] for row in our_predictions()]

    def keras_examples(peer: keras.Model) -> list[np.ndarray]:
        rows = ({"logits": row} for row in keras_array(peer))
        return [row["logits"] for row in rows]

    pairs = {
        "predict": (our_array, keras_array),
        "predict one by one": (our_examples, keras_examples),
    }
    for call, (ours, of_keras) in pairs.items():
        contestants = {"ours": ours, **best_of_keras.calls(peers, of_keras)}
        seconds = median_seconds(contestants, _REPETITIONS)
        values = {name: f() for name, f in contestants.items()}
        check_equal(call, values, 0.01)
        name, fastest = best_of_keras.fastest(seconds)
        yield Row(
            f"{call} from {what}, against {name}",
            _EXAMPLES / seconds["ours"],
            _EXAMPLES / fastest,
            "examples/s",
            Goal("ratio", least=1.0),
        )
