"""Training speed, compared with a plain JAX loop and with Keras."""

import tempfile
from collections.abc import Iterator
from typing import Any

from benchmarks import best_of_keras
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
    yield _against_keras(what, rates, least=1.25)

    mlp = Mlp((32, 32, 2), batch=64)
    # This benchmark does not measure the overhead of a call of `train`, which is mainly
    # its checkpoint.
    rates = _steps_per_second(mlp, steps=24_000)
    what = f"train, {mlp}, against "
    ours = rates["ours"]
    at_least = Goal("ratio", least=0.95)
    yield Row(what + "a jitted scan", ours, rates["scan"], "steps/s", at_least)
    yield _against_keras(what, rates, least=4.0)


def _against_keras(what: str, rates: dict[str, float], least: float) -> Row:
    name, seconds = best_of_keras.fastest({n: 1 / rate for n, rate in rates.items()})
    at_least = Goal("ratio", least=least)
    return Row(f"{what}{name}", rates["ours"], 1 / seconds, "steps/s", at_least)


def _steps_per_second(mlp: Mlp, steps: int) -> dict[str, float]:
    """Measures the rate of each contestant, and checks that all losses are equal."""
    dataset = endless(mlp, _EXAMPLES)
    scan = ScanLoop(mlp)
    peers = best_of_keras.models(mlp)

    def loops() -> Iterator[Any]:
        return stacked(dataset, steps, _ITERATIONS)

    fit = {"steps_per_epoch": steps, "shuffle": False, "verbose": 0}
    with tempfile.TemporaryDirectory() as directory:
        ours = estimator(mlp, directory, _ITERATIONS)
        seconds = median_seconds(
            {
                "ours": lambda: ours.train(lambda params: dataset, steps=steps),
                "scan": lambda: scan.train(stacked(dataset, steps, _ITERATIONS)),
                **best_of_keras.calls(peers, lambda model: model.fit(dataset, **fit)),
            },
            repetitions=5,
        )
        x, y = mlp.data(_EXAMPLES)
        data = batches(mlp, _EXAMPLES)
        losses = {
            "ours": ours.evaluate(lambda params: data)["loss"],
            "scan": scan.loss(x, y),
            **{name: peer.evaluate(x, y, verbose=0) for name, peer in peers.items()},
        }
    check_equal("final loss", losses, rtol=0.05)
    return {name: steps / each for name, each in seconds.items()}
