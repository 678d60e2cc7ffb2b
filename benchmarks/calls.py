"""The overhead of a call after everything is compiled."""

import tempfile
from collections.abc import Iterator

from benchmarks.datasets import endless
from benchmarks.estimators import estimator
from benchmarks.models import Mlp
from benchmarks.table import Goal, Row
from benchmarks.timing import median_seconds

_MORE_LOOPS = 10


def rows() -> Iterator[Row]:
    """Returns rows for repeated calls on one batch, and for a short training."""
    mlp = Mlp((784, 128, 10), batch=128)
    peer = mlp.keras_model(metrics=["accuracy"])
    trained = mlp.keras_model(steps_per_execution=100)
    x, y = mlp.data(mlp.batch)
    dataset = endless(mlp, examples=12_800)
    with tempfile.TemporaryDirectory() as directory:
        ours = estimator(mlp, directory)
        # The first round is not counted, as in all benchmarks.
        train = median_seconds(
            {
                "short": lambda: ours.train(lambda params: dataset, steps=100),
                "long": lambda: ours.train(
                    lambda params: dataset, steps=100 + 100 * _MORE_LOOPS
                ),
                "Keras": lambda: trained.fit(
                    dataset, steps_per_epoch=100, shuffle=False, verbose=0
                ),
            },
            repetitions=7,
        )
        call = median_seconds(
            {
                "predict": lambda: list(ours.predict(lambda params: x)),
                "Keras predict": lambda: peer.predict(x, mlp.batch, verbose=0),
                "evaluate": lambda: ours.evaluate(lambda params: (x, y)),
                "Keras evaluate": lambda: peer.evaluate(x, y, mlp.batch, verbose=0),
            },
            repetitions=30,
        )
    for what in ("predict", "evaluate"):
        yield Row(
            f"a second {what} of one batch, against Keras {what}",
            1e3 * call[what],
            1e3 * call[f"Keras {what}"],
            "ms",
            Goal("ours", most=20),
        )
    yield Row(
        "a second train of 100 steps, against 100 steps of a long run",
        1e3 * train["short"],
        1e3 * (train["long"] - train["short"]) / _MORE_LOOPS,
        "ms",
        Goal("excess", most=150),
    )
    yield Row(
        "a second train of 100 steps, against Keras fit",
        1e3 * train["short"],
        1e3 * train["Keras"],
        "ms",
        Goal("ratio", most=1.0),
    )
