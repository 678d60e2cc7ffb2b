"""Eight simulated cores against one, in a process that has eight.

The cores are threads of one CPU, so more of them cannot be faster; what can be
lost to splitting, reducing and copying is what is measured. The network is
large enough for its arithmetic to matter. Every core updates all weights, here
eight of them in one memory; so the fewer examples each has, the more is lost.
"""

import json
import tempfile
from collections.abc import Iterator

from benchmarks.agreement import check_equal
from benchmarks.datasets import batches
from benchmarks.datasets import endless
from benchmarks.estimators import estimator
from benchmarks.isolation import run_module
from benchmarks.models import Mlp
from benchmarks.table import Goal
from benchmarks.table import Row
from benchmarks.timing import median_seconds

_MLPS = [Mlp((784, 512, 10), batch=batch) for batch in (2048, 4096)]
_EXAMPLES = 120 * 2048
_EIGHT_CORES = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
}


def rows() -> Iterator[Row]:
    """Steps per second with the same global batch."""
    for mlp, rates in zip(
        _MLPS, run_module("benchmarks.cores", _EIGHT_CORES), strict=True
    ):
        yield Row(
            f"train, {mlp}, 8 simulated cores against 1",
            rates["eight"],
            rates["one"],
            "steps/s",
            Goal("ratio", least=0.8),
        )


def measure(mlp: Mlp) -> dict[str, float]:
    """The rates, in a process that has the eight cores."""
    examples, steps = 8 * mlp.batch, _EXAMPLES // mlp.batch
    dataset = endless(mlp, examples)
    with tempfile.TemporaryDirectory() as directory:
        contestants = {
            "eight": estimator(mlp, directory + "/8", 10, use_tpu=True),
            "one": estimator(mlp, directory + "/1", 10, use_tpu=False),
        }
        seconds = median_seconds(
            {
                name: lambda each=each: each.train(
                    lambda params: dataset, steps=steps
                )
                for name, each in contestants.items()
            },
            repetitions=5,
        )
        data = batches(mlp, examples)
        losses = {
            name: each.evaluate(lambda params: data)["loss"]
            for name, each in contestants.items()
        }
    check_equal("final loss", losses, rtol=0.05)
    return {name: steps / each for name, each in seconds.items()}


if __name__ == "__main__":
    print(json.dumps([measure(mlp) for mlp in _MLPS]))
