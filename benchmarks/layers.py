"""Training of convolutions and attention, compared with JAX loops and Keras."""

import functools
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from benchmarks.agreement import check_equal
from benchmarks.datasets import batches, endless, stacked
from benchmarks.estimators import estimator
from benchmarks.networks import CONVOLUTIONS, SEQUENCES, Network
from benchmarks.scan_loop import RewrittenScanLoop, ScanLoop, StepLoop
from benchmarks.table import Goal, Row
from benchmarks.timing import median_seconds, seconds

_ITERATIONS = 32
_BATCHES = 8
# XLA computes convolutions slowly in the body of a loop.
_SLOW_STEPS = 4
_PLAIN_SCAN = "a plain scan"
_BEST_SCAN = "the best scan"


def convolutions() -> Iterator[Row]:
    """Returns rows for the steps per second and the compile times of convolutions."""
    yield from _rows(CONVOLUTIONS)
    for network in CONVOLUTIONS:
        yield _compiling(network)


def sequences() -> Iterator[Row]:
    """Returns rows for the steps per second of networks over sequences."""
    return _rows(SEQUENCES)


def _rows(networks: Iterable[Network]) -> Iterator[Row]:
    for network in networks:
        rates = _steps_per_second(network)
        goals = dict.fromkeys(rates, 1.0) | {_BEST_SCAN: 0.9}
        if network.than_scan:
            rates |= {_PLAIN_SCAN: _rate_of_scan(network)}
            goals |= {_PLAIN_SCAN: network.than_scan}
        ours = rates.pop("ours")
        for peer, rate in rates.items():
            yield Row(
                f"train, {network}, against {peer}",
                ours,
                rate,
                "steps/s",
                Goal("ratio", least=goals[peer]),
            )


def _steps_per_second(network: Network) -> dict[str, float]:
    """Measures the rate of each contestant, and checks that all losses are equal."""
    dataset = endless(network, _BATCHES * network.batch)
    rewritten, step = RewrittenScanLoop(network), StepLoop(network)
    one, several = network.keras_model(), network.keras_model(_ITERATIONS)

    def fit(model: Any, steps: int) -> None:
        model.fit(dataset, steps_per_epoch=steps, shuffle=False, verbose=0)

    with tempfile.TemporaryDirectory() as directory:
        ours = estimator(network, directory, _ITERATIONS)
        runs = {
            "ours": lambda n: ours.train(lambda params: dataset, steps=n),
            _BEST_SCAN: lambda n: rewritten.train(stacked(dataset, n, _ITERATIONS)),
            "a jitted step": lambda n: step.train(dataset.take(n).as_numpy_iterator()),
            "Keras fit, 1 step": lambda n: fit(one, n),
            f"Keras fit, {_ITERATIONS} steps": lambda n: fit(several, n),
        }
        for run in runs.values():
            run(_ITERATIONS)
        x, y = network.data(_BATCHES * network.batch)
        data = batches(network, len(x))
        losses = {
            "ours": ours.evaluate(lambda params: data)["loss"],
            _BEST_SCAN: rewritten.loss(x, y),
            "a jitted step": step.loss(x, y),
            "Keras fit, 1 step": one.evaluate(x, y, verbose=0),
            f"Keras fit, {_ITERATIONS} steps": several.evaluate(x, y, verbose=0),
        }
        check_equal("loss", losses, rtol=0.2)
        return _rates(runs)


def _rates(runs: Mapping[str, Callable[[int], object]]) -> dict[str, float]:
    """Measures steps per second in runs of sufficient length."""
    # A call of `train` also has a fixed overhead, mainly the checkpoint.
    scanned = _ITERATIONS * _loops(runs[_BEST_SCAN], at_least=2)
    steps = dict.fromkeys(runs, _ITERATIONS * _loops(runs["a jitted step"], at_least=1))
    steps |= {"ours": scanned, _BEST_SCAN: scanned}
    times = median_seconds(
        {name: functools.partial(run, steps[name]) for name, run in runs.items()},
        repetitions=2,
        is_compiled=True,
    )
    return {name: steps[name] / each for name, each in times.items()}


def _compiling(network: Network) -> Row:
    """Measures the seconds to compile a loop, unchanged and rewritten."""
    batches = next(stacked(endless(network, network.batch), 2, 2))
    times = median_seconds(
        {
            name: functools.partial(scan.compile, batches)
            for name, scan in (
                ("ours", RewrittenScanLoop(network)),
                (_PLAIN_SCAN, ScanLoop(network)),
            )
        },
        repetitions=3,
        is_compiled=True,
    )
    return Row(
        f"compile, {network}, against {_PLAIN_SCAN}",
        times["ours"],
        times[_PLAIN_SCAN],
        "s",
        Goal("ratio", most=2.0),
    )


def _loops(run: Callable[[int], object], at_least: float) -> int:
    """Returns the number of loops that take at least a given time."""
    return math.ceil(at_least / seconds(functools.partial(run, _ITERATIONS)))


def _rate_of_scan(network: Network) -> float:
    """Measures the rate of a slow scan over few steps."""
    dataset = endless(network, _BATCHES * network.batch)
    scan = ScanLoop(network)
    steps = _SLOW_STEPS
    times = median_seconds(
        {_PLAIN_SCAN: lambda: scan.train(stacked(dataset, steps, steps))},
        repetitions=1,
    )
    return steps / times[_PLAIN_SCAN]
