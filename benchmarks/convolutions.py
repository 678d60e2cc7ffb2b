"""Training convolutional networks: against loops, and against Keras."""

import tempfile
from collections.abc import Iterator
from typing import Any

from benchmarks.agreement import check_equal
from benchmarks.convolutional_models import NETWORKS
from benchmarks.convolutional_models import ConvolutionalNetwork
from benchmarks.datasets import batches
from benchmarks.datasets import endless
from benchmarks.datasets import stacked
from benchmarks.estimators import estimator
from benchmarks.scan_loop import ScanLoop
from benchmarks.scan_loop import StepLoop
from benchmarks.table import Goal
from benchmarks.table import Row
from benchmarks.timing import median_seconds

_ITERATIONS = 32
_BATCHES = 8
# XLA computes convolutions naively in the body of a loop.
_SCAN_STEPS = 4
# By how much scans of these were slower than ours should be.
_AT_LEAST = {
    "two 3 x 3 convolutions": 12,
    "depthwise-separable blocks": 15,
    "residual blocks": 20,
}


def rows() -> Iterator[Row]:
    """Steps per second of networks with convolutions."""
    for network in NETWORKS:
        rates = _steps_per_second(network)
        for peer, least in (
            ("a jitted scan", _AT_LEAST[network.name]),
            ("a jitted step", 1.0),
            ("Keras fit, 1 step", 1.0),
            (f"Keras fit, {_ITERATIONS} steps", 1.0),
        ):
            yield Row(
                f"train, {network}, against {peer}",
                rates["ours"],
                rates[peer],
                "steps/s",
                Goal("ratio", least=least),
            )


def _steps_per_second(network: ConvolutionalNetwork) -> dict[str, float]:
    """The rate of each contestant, who all learn as well."""
    dataset = endless(network, _BATCHES * network.batch)
    scan, step = ScanLoop(network), StepLoop(network)
    one, several = network.keras_model(), network.keras_model(_ITERATIONS)
    steps = _ITERATIONS
    fit = {"steps_per_epoch": steps, "shuffle": False, "verbose": 0}

    def one_by_one() -> Iterator[Any]:
        return dataset.take(steps).as_numpy_iterator()

    with tempfile.TemporaryDirectory() as directory:
        ours = estimator(network, directory, _ITERATIONS)
        seconds = median_seconds(
            {
                "ours": lambda: ours.train(lambda params: dataset, steps=steps),
                "a jitted step": lambda: step.train(one_by_one()),
                "Keras fit, 1 step": lambda: one.fit(dataset, **fit),
                f"Keras fit, {steps} steps": lambda: several.fit(
                    dataset, **fit
                ),
            },
            repetitions=3,
        )
        x, y = network.data(_BATCHES * network.batch)
        data = batches(network, len(x))
        losses = {
            "ours": ours.evaluate(lambda params: data)["loss"],
            "a jitted step": step.loss(x, y),
            "Keras fit, 1 step": one.evaluate(x, y, verbose=0),
            f"Keras fit, {steps} steps": several.evaluate(x, y, verbose=0),
        }
    check_equal("final loss", losses, rtol=0.2)
    slow = median_seconds(
        {
            "a jitted scan": lambda: scan.train(
                stacked(dataset, _SCAN_STEPS, _SCAN_STEPS)
            )
        },
        repetitions=1,
    )
    rates = {name: steps / each for name, each in seconds.items()}
    return rates | {name: _SCAN_STEPS / each for name, each in slow.items()}
