"""Eight simulated cores against one, in a process that has eight.

The cores are threads of one CPU, so more of them cannot be faster. The
benchmark measures the cost of splitting, reducing and copying. The network is
large enough for its arithmetic to matter. Eight threads that wait for one
another on fewer processors lose some milliseconds per step in every loop.
Therefore a loop by hand is also measured, and each with two batch sizes.
"""

import json
import tempfile
from collections.abc import Iterator

from benchmarks.agreement import check_equal
from benchmarks.datasets import batches, endless, stacked
from benchmarks.estimators import estimator
from benchmarks.isolation import run_module
from benchmarks.models import Mlp
from benchmarks.scan_loop import ScanLoop
from benchmarks.table import Goal, Row
from benchmarks.timing import median_seconds

_MLPS = [Mlp((784, 512, 10), batch=batch) for batch in (2048, 4096)]
_EXAMPLES = 120 * 2048
_ITERATIONS = 10
_EIGHT_CORES = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
}


def rows() -> Iterator[Row]:
    """Returns rows for steps per second with the same global batch."""
    for mlp, rates in zip(
        _MLPS, run_module("benchmarks.cores", _EIGHT_CORES), strict=True
    ):
        by_hand = rates["scan, eight"] / rates["scan, one"]
        yield Row(
            f"train, {mlp}, 8 simulated cores against 1 (a jitted scan: {by_hand:.2f})",
            rates["eight"],
            rates["one"],
            "steps/s",
            Goal("ratio", least=0.8),
        )
        yield Row(
            f"train, {mlp}, 8 simulated cores, against a jitted scan on 8",
            rates["eight"],
            rates["scan, eight"],
            "steps/s",
            Goal("ratio", least=0.9),
        )


def measure(mlp: Mlp) -> dict[str, float]:
    """Measures the rates in a process with eight cores."""
    examples, steps = 8 * mlp.batch, _EXAMPLES // mlp.batch
    dataset = endless(mlp, examples)
    with tempfile.TemporaryDirectory() as directory:
        estimators = {
            "eight": estimator(mlp, directory + "/8", _ITERATIONS),
            "one": estimator(mlp, directory + "/1", _ITERATIONS, use_tpu=False),
        }
        scans = {
            "scan, eight": ScanLoop(mlp, cores=8),
            "scan, one": ScanLoop(mlp),
        }
        seconds = median_seconds(
            {
                name: lambda each=each: each.train(lambda params: dataset, steps=steps)
                for name, each in estimators.items()
            }
            | {
                name: lambda each=each: each.train(stacked(dataset, steps, _ITERATIONS))
                for name, each in scans.items()
            },
            repetitions=5,
        )
        data = batches(mlp, examples)
        x, y = mlp.data(examples)
        losses = {
            name: each.evaluate(lambda params: data)["loss"]
            for name, each in estimators.items()
        } | {name: each.loss(x, y) for name, each in scans.items()}
    check_equal("final loss", losses, rtol=0.05)
    return {name: steps / each for name, each in seconds.items()}


if __name__ == "__main__":
    print(json.dumps([measure(mlp) for mlp in _MLPS]))
