"""Eight simulated cores against one, in a process that has eight.

The cores are threads of one CPU, so more of them cannot be faster; what can be
lost to splitting, reducing and copying is what is measured. The network and
its batch, 512 examples on each core, are large enough for the arithmetic to
matter. With 256 on each, the ratio is about 0.8: every core updates all
weights, and here eight of them do so in one memory.
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

_MLP = Mlp((784, 512, 10), batch=4096)
_STEPS = 60
_EIGHT_CORES = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
}


def rows() -> Iterator[Row]:
    """Steps per second with the same global batch."""
    rates = run_module("benchmarks.cores", _EIGHT_CORES)
    yield Row(
        f"train, {_MLP}, 8 simulated cores against 1",
        rates["eight"],
        rates["one"],
        "steps/s",
        Goal("ratio", least=0.8),
    )


def measure() -> dict[str, float]:
    """The rates, in a process that has the eight cores."""
    examples = 8 * _MLP.batch
    dataset = endless(_MLP, examples)
    with tempfile.TemporaryDirectory() as directory:
        contestants = {
            "eight": estimator(_MLP, directory + "/8", 10, use_tpu=True),
            "one": estimator(_MLP, directory + "/1", 10, use_tpu=False),
        }
        seconds = median_seconds(
            {
                name: lambda each=each: each.train(
                    lambda params: dataset, steps=_STEPS
                )
                for name, each in contestants.items()
            },
            repetitions=5,
        )
        data = batches(_MLP, examples)
        losses = {
            name: each.evaluate(lambda params: data)["loss"]
            for name, each in contestants.items()
        }
    check_equal("final loss", losses, rtol=0.05)
    return {name: _STEPS / each for name, each in seconds.items()}


if __name__ == "__main__":
    print(json.dumps(measure()))
