"""The overhead of a call after everything is compiled."""

import tempfile
from collections.abc import Iterator

from benchmarks import best_of_keras
from benchmarks.datasets import endless
from benchmarks.estimators import estimator
from benchmarks.models import Mlp
from benchmarks.table import Goal, Row
from benchmarks.timing import median_seconds

_MORE_LOOPS = 10


def rows() -> Iterator[Row]:
    """Returns rows for repeated calls on one batch, and for a short training."""
    mlp = Mlp((784, 128, 10), batch=128)
    peers = best_of_keras.models(mlp, (1, 100), metrics=["accuracy"])
    trained = best_of_keras.models(mlp)
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
                **best_of_keras.calls(
                    trained,
                    lambda model: model.fit(
                        dataset, steps_per_epoch=100, shuffle=False, verbose=0
                    ),
                ),
            },
            repetitions=7,
        )
        contestants = {
            "predict": (
                lambda: list(ours.predict(lambda params: x)),
                lambda peer: peer.predict(x, mlp.batch, verbose=0),
            ),
            "evaluate": (
                lambda: ours.evaluate(lambda params: (x, y)),
                lambda peer: peer.evaluate(x, y, mlp.batch, verbose=0),
            ),
        }
        call = {
            what: median_seconds(
                {"ours": our_call, **best_of_keras.calls(peers, of_keras)},
                repetitions=30,
            )
            for what, (our_call, of_keras) in contestants.items()
        }
    for what, seconds in call.items():
        name, fastest = best_of_keras.fastest(seconds)
        yield Row(
            f"a second {what} of one batch, against {name}",
            1e3 * seconds["ours"],
            1e3 * fastest,
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
    name, fastest = best_of_keras.fastest(train)
    yield Row(
        f"a second train of 100 steps, against {name}",
        1e3 * train["short"],
        1e3 * fastest,
        "ms",
        Goal("ratio", most=1.0),
    )
