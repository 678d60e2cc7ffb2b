"""Training speed, compared with a plain JAX loop and with Keras."""

import tempfile
from collections.abc import Iterator
from typing import Any

from benchmarks.agreement import check_equal
from benchmarks.datasets import batches, endless, stacked
from benchmarks.estimators import estimator
from benchmarks.models import Mlp
from benchmarks.scan_loop import ScanLoop
from benchmarks.table import Goal, Row
from benchmarks.timing import median_seconds

_ITERATIONS = 100
_EXAMPLES = 12_800


def rows() -> Iterator[Row]:
    """Returns rows for the steps per second of a medium and of a tiny network."""
    mlp = Mlp((784, 128, 10), batch=128)
    rates = _steps_per_second(mlp, steps=3000)
    what = f"train, {mlp}, against "
    ours = rates["ours"]
    at_least = Goal("ratio", least=0.97)
    yield Row(what + "a jitted scan", ours, rates["scan"], "steps/s", at_least)
    at_least = Goal("ratio", least=1.25)
    yield Row(what + "Keras fit", ours, _keras(rates), "steps/s", at_least)

    mlp = Mlp((32, 32, 2), batch=64)
    # This benchmark does not measure the overhead of a call of `train`, which is mainly
    # its checkpoint.
    rates = _steps_per_second(mlp, steps=24_000)
    what = f"train, {mlp}, against "
    ours = rates["ours"]
    at_least = Goal("ratio", least=0.95)
    yield Row(what + "a jitted scan", ours, rates["scan"], "steps/s", at_least)
    at_least = Goal("ratio", least=4.0)
    yield Row(what + "Keras fit", ours, _keras(rates), "steps/s", at_least)


def _keras(rates: dict[str, float]) -> float:
    return max(rates["Keras, 1 step"], rates["Keras, 100 steps"])


def _steps_per_second(mlp: Mlp, steps: int) -> dict[str, float]:
    """Measures the rate of each contestant, and checks that all losses are equal."""
    dataset = endless(mlp, _EXAMPLES)
    scan = ScanLoop(mlp)
    one, hundred = mlp.keras_model(), mlp.keras_model(_ITERATIONS)

    def loops() -> Iterator[Any]:
        return stacked(dataset, steps, _ITERATIONS)

    fit = {"steps_per_epoch": steps, "shuffle": False, "verbose": 0}
    with tempfile.TemporaryDirectory() as directory:
        ours = estimator(mlp, directory, _ITERATIONS)
        seconds = median_seconds(
            {
                "ours": lambda: ours.train(lambda params: dataset, steps=steps),
                "scan": lambda: scan.train(stacked(dataset, steps, _ITERATIONS)),
                "Keras, 1 step": lambda: one.fit(dataset, **fit),
                "Keras, 100 steps": lambda: hundred.fit(dataset, **fit),
            },
            repetitions=5,
        )
        x, y = mlp.data(_EXAMPLES)
        data = batches(mlp, _EXAMPLES)
        losses = {
            "ours": ours.evaluate(lambda params: data)["loss"],
            "scan": scan.loss(x, y),
            "Keras, 1 step": one.evaluate(x, y, verbose=0),
            "Keras, 100 steps": hundred.evaluate(x, y, verbose=0),
        }
    check_equal("final loss", losses, rtol=0.05)
    return {name: steps / each for name, each in seconds.items()}
