"""Saving and restoring an Adam state of 110 million parameters."""

import functools
import itertools
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

import keras_tpu_estimator as kte
from benchmarks.datasets import endless
from benchmarks.estimators import estimator
from benchmarks.isolation import run_module
from benchmarks.models import Mlp
from benchmarks.table import Goal
from benchmarks.table import Row
from benchmarks.timing import median_seconds

_MLP = Mlp((1024, 5120, 5120, 5120, 5120, 5120, 10), batch=8)
_SAVES = 7
_REPETITIONS = 7


def rows() -> Iterator[Row]:
    """The wait of training, and the rates of the file."""
    found = run_module("benchmarks.checkpoints")
    what = f"{found['GB']:.2f} GB of parameters and Adam's slots"
    yield Row(
        f"wait of training for a save, {what}, against a copy to the host",
        found["wait"],
        found["copy"],
        "s",
        Goal("ratio", most=1.3),
    )
    for measure, peer, name in (
        ("save", "dd with fsync", "write"),
        ("restore", "dd into memory, nothing cached", "read"),
    ):
        yield Row(
            f"{measure}, {what}, against {peer}",
            found[f"ours, {name}"],
            found[f"dd, {name}"],
            "MB/s",
            Goal("ratio", least=0.7),
        )


def measure() -> dict[str, float]:
    """Seconds of the waits, and rates in megabytes per second."""
    with tempfile.TemporaryDirectory() as directory:
        rates = _rates(directory, _state())
    with tempfile.TemporaryDirectory() as directory:
        return rates | _waits(directory)


def _state() -> dict[str, np.ndarray]:
    """Arrays like the weights and Adam's two slots of each."""
    return {
        f"{slot}/{layer}": np.full(shape, layer, "float32")
        for slot in ("weights", "momentum", "velocity")
        for layer, shape in enumerate(itertools.pairwise(_MLP.sizes))
    }


def _waits(directory: str) -> dict[str, float]:
    """What training waits for a save, and what copying its values takes."""
    hook = _TimedSaves(directory)
    dataset = endless(_MLP, examples=80)
    ours = estimator(_MLP, directory, iterations=1)
    ours.train(lambda params: dataset, [hook], steps=_SAVES + 1)
    # In the first, memory is got from the system and not from the process.
    return {
        "wait": statistics.median(hook.waits[1:]),
        "copy": statistics.median(hook.copies[1:]),
    }


class _TimedSaves(kte.hooks.SessionRunHook):
    """Saves after each step, and copies as many values to the host."""

    def __init__(self, directory: str):
        self._directory = directory
        self.waits: list[float] = []
        self.copies: list[float] = []

    def after_run(
        self,
        run_context: kte.hooks.SessionRunContext,
        run_values: kte.hooks.SessionRunValues,
    ) -> None:
        del run_values
        # What is measured is no save that waits for the one before.
        prefix = kte.latest_checkpoint(self._directory)
        session = run_context.session
        session.run("loss")
        contestants = [
            (self.copies, functools.partial(_copy, _on_device(prefix))),
            (self.waits, functools.partial(_save, session, self._directory)),
        ]
        for seconds, run in contestants[:: 1 if len(self.waits) % 2 else -1]:
            start = time.perf_counter()
            kept = run()
            seconds.append(time.perf_counter() - start)
            kte.latest_checkpoint(self._directory)
            del kept


def _on_device(prefix: str) -> list[jax.Array]:
    values = kte.checkpoints.read(prefix).values()
    return jax.block_until_ready([jax.device_put(value) for value in values])


def _copy(values: list[jax.Array]) -> list[np.ndarray]:
    """Copies values to the host, which is where those of a CPU are already."""
    fetched = jax.device_get(values)
    if jax.default_backend() != "cpu":
        return fetched
    return [np.array(value) for value in fetched]


def _save(session: Any, directory: str) -> None:
    session.save_checkpoint(directory, wait=False)


def _rates(
    directory: str, values: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Megabytes per second of files, of this package and of dd."""
    size = sum(value.nbytes for value in values.values())
    written = os.path.join(directory, "dd")
    file = kte.checkpoints.save(directory, 20, values) + ".h5"
    seconds = median_seconds(
        {
            "ours, write": lambda: kte.checkpoints.save(directory, 20, values),
            "dd, write": lambda: _dd(
                *("bs=16M", "if=/dev/zero", f"of={written}", "conv=fsync"),
                *("iflag=count_bytes", f"count={size}"),
            ),
        },
        _REPETITIONS,
    )
    # Apart from the writing, which moves the system's memory around: whoever
    # asks for memory next pays for it. dd reads one block, which is as large as
    # what we have to fill.
    seconds |= median_seconds(
        {
            "ours, read": _uncached(file, lambda: kte.checkpoints.read(file)),
            "dd, read": _uncached(
                file,
                lambda: _dd(
                    f"bs={size}", f"if={file}", "of=/dev/null", "count=1"
                ),
            ),
        },
        _REPETITIONS,
    )
    rates = {name: size / 1e6 / each for name, each in seconds.items()}
    return rates | {"GB": size / 1e9}


def _dd(*arguments: str) -> None:
    subprocess.run(["dd", "status=none", *arguments], check=True)


def _uncached(path: str, read: Callable[[], object]) -> Callable[[], None]:
    """Reads a file that the system no longer has in memory."""

    def run() -> None:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        read()

    return run


if __name__ == "__main__":
    print(json.dumps(measure()))
