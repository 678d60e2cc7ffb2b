"""The speed of evaluation and prediction, compared with Keras."""

import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

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

Peers: TypeAlias = Mapping[str, keras.Model]
_EXAMPLES = 25_600
_REPETITIONS = 15


def rows() -> Iterator[Row]:
    """Returns rows for the examples per second of evaluation and prediction."""
    mlp = Mlp((784, 128, 10), batch=128)
    dataset = batches(mlp, _EXAMPLES)
    peers = best_of_keras.models(mlp, metrics=["accuracy"])
    for peer in peers.values():
        peer.fit(dataset.take(100), shuffle=False, verbose=0)
    with tempfile.TemporaryDirectory() as directory:
        ours = estimator(mlp, directory)
        ours.train(lambda params: dataset, steps=100)
        yield _evaluate(mlp, dataset, ours, peers)
        yield from _predict(mlp, dataset, ours, peers)


def _evaluate(mlp: Mlp, dataset: Any, ours: kte.TPUEstimator, peers: Peers) -> Row:
    def our_evaluation() -> list[float]:
        result = ours.evaluate(lambda params: dataset)
        return [result["loss"], result["accuracy"]]

    def keras_evaluation(peer: keras.Model) -> list[float]:
        return peer.evaluate(dataset, verbose=0)

    return _row("evaluate", mlp, our_evaluation, peers, keras_evaluation)


def _predict(
    mlp: Mlp, dataset: Any, ours: kte.TPUEstimator, peers: Peers
) -> Iterator[Row]:
    """Returns rows for predictions as one array, as in Keras, and one by one."""
    features = dataset.map(lambda x, y: x)

    def input_fn(params: Any) -> Any:
        return features

    def our_array() -> np.ndarray:
        batches = ours.predict(input_fn, yield_single_examples=False)
        return np.concatenate([batch["logits"] for batch in batches])

    def keras_array(peer: keras.Model) -> np.ndarray:
        return peer.predict(features, verbose=0)

    def our_examples() -> list[np.ndarray]:
        return [row["logits"] for row in ours.predict(input_fn)]

    def keras_examples(peer: keras.Model) -> list[np.ndarray]:
        rows = ({"logits": row} for row in keras_array(peer))
        return [row["logits"] for row in rows]

    yield _row("predict", mlp, our_array, peers, keras_array)
    yield _row("predict one by one", mlp, our_examples, peers, keras_examples)


def _row(what: str, mlp: Mlp, ours: Any, peers: Peers, call: Any) -> Row:
    """Returns a row for functions that must return the same."""
    contestants = {"ours": ours, **best_of_keras.calls(peers, call)}
    seconds = median_seconds(contestants, _REPETITIONS)
    check_equal(what, {name: f() for name, f in contestants.items()}, 0.01)
    name, fastest = best_of_keras.fastest(seconds)
    return Row(
        f"{what}, {mlp}, against {name}",
        _EXAMPLES / seconds["ours"],
        _EXAMPLES / fastest,
        "examples/s",
        Goal("ratio", least=1.0),
    )
