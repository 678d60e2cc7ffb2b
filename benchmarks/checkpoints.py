"""Saving and restoring an Adam state of 110 million parameters.

Orbax also flushes values to the disk (`fsync`) before it renames the files.
"""

import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import keras_tpu_estimator as kte
from benchmarks.datasets import endless
from benchmarks.estimators import estimator
from benchmarks.isolation import run_module
from benchmarks.models import Mlp
from benchmarks.orbax_saves import OrbaxSaves
from benchmarks.table import Goal, Row
from benchmarks.timing import median_seconds

_MLP = Mlp((1024, 5120, 5120, 5120, 5120, 5120, 10), batch=8)
_SAVES = 7
_SMALL = 50
_REPETITIONS = 7


def rows() -> Iterator[Row]:
    """Returns rows for the time that training waits, and for the rates of files."""
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
    yield from _rows_of_orbax(found, what)


def _rows_of_orbax(found: dict[str, float], what: str) -> Iterator[Row]:
    if not OrbaxSaves.are_possible():
        print("Orbax is not installed. Its rows are omitted.", file=sys.stderr)
        return
    small = f"{_SMALL} arrays of 8 kB"
    for measure, name, unit, scale in (
        (f"wait of training for a save, {what}", "wait", "s", 1.0),
        (f"save, {what}", "save", "s", 1.0),
        (f"restore, nothing cached, {what}", "restore", "s", 1.0),
        (f"save, {small}", "small save", "ms", 1e3),
        (f"restore, {small}", "small restore", "ms", 1e3),
    ):
        yield Row(
            f"{measure}, against Orbax",
            scale * found[name],
            scale * found[f"orbax, {name}"],
            unit,
            Goal("ratio", most=1.0),
        )


def measure() -> dict[str, float]:
    """Measures waits in seconds, and rates in megabytes per second."""
    found: dict[str, float] = {}
    state = _state()
    parts = [_waits, functools.partial(_rates, values=state)]
    if OrbaxSaves.are_possible():
        small = {f"v{i}": _noise((2000,)) for i in range(_SMALL)}
        parts += [
            functools.partial(_beside_orbax, values=state),
            functools.partial(_beside_orbax, values=small, of="small "),
        ]
    for part in parts:
        with tempfile.TemporaryDirectory() as directory:
            found |= part(directory)
    return found


def _state() -> dict[str, np.ndarray]:
    """Returns arrays like weights and the two Adam slots of each."""
    return {
        f"{slot}/{layer}": _noise(shape)
        for slot in ("weights", "momentum", "velocity")
        for layer, shape in enumerate(itertools.pairwise(_MLP.sizes))
    }


def _noise(shape: tuple[int, ...]) -> np.ndarray:
    """Returns numbers that cannot be compressed, like weights."""
    return np.random.default_rng(0).standard_normal(shape, "float32")


def _waits(directory: str) -> dict[str, float]:
    """Measures the wait for a save, and the time of copying values."""
    hook = _TimedSaves(directory)
    dataset = endless(_MLP, examples=80)
    ours = estimator(_MLP, directory, iterations=1)
    ours.train(lambda params: dataset, [hook], steps=_SAVES + 1)
    # The first save allocates memory from the system.
    return {name: statistics.median(each[1:]) for name, each in hook.seconds.items()}


class _TimedSaves(kte.hooks.SessionRunHook):
    """Saves or copies the values after each step, and records the time."""

    def __init__(self, directory: str):
        self._directory = directory
        self._orbax = None
        if OrbaxSaves.are_possible():
            self._orbax = OrbaxSaves(directory)
        self.seconds: dict[str, list[float]] = {}

    def after_run(
        self,
        run_context: kte.hooks.SessionRunContext,
        run_values: kte.hooks.SessionRunValues,
    ) -> None:
        del run_values
        # The measured save does not wait for the previous one.
        prefix = kte.latest_checkpoint(self._directory)
        session = run_context.session
        session.run("loss")
        values = _on_device(prefix)
        contestants: list[tuple[str, Callable[[], object]]] = [
            ("copy", lambda: _copy(values.values())),
            ("wait", lambda: _save(session, self._directory)),
        ]
        if self._orbax is not None:
            peer = self._orbax
            contestants.append(("orbax, wait", lambda: peer.begin(_apart(values))))
        turn = len(self.seconds.get("wait", ())) % len(contestants)
        for name, run in contestants[turn:] + contestants[:turn]:
            start = time.perf_counter()
            kept = run()
            passed = time.perf_counter() - start
            self.seconds.setdefault(name, []).append(passed)
            kte.latest_checkpoint(self._directory)
            if name == "orbax, wait":
                self._orbax.remove()
            del kept


def _on_device(prefix: str) -> dict[str, jax.Array]:
    values = kte.checkpoints.read(prefix)
    return jax.block_until_ready(jax.device_put(values))


def _copy(values: Iterable[jax.Array]) -> list[np.ndarray]:
    """Copies values to the host. Values on a CPU are not copied."""
    fetched = jax.device_get(list(values))
    if jax.default_backend() != "cpu":
        return fetched
    return [np.array(value) for value in fetched]


def _apart(values: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns values that the next step does not overwrite.

    Orbax saves the memory of CPU arrays without copying them.
    """
    if jax.default_backend() != "cpu":
        return values
    return jax.block_until_ready(jax.tree.map(jnp.copy, values))


def _save(session: Any, directory: str) -> None:
    session.save_checkpoint(directory, wait=False)


def _rates(directory: str, values: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Measures megabytes per second of this package and of `dd`."""
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
    # Reading is measured after all writing, because the first allocation after a
    # write is slow. `dd` reads one block of the size that this package reads.
    seconds |= median_seconds(
        {
            "ours, read": _uncached([file], lambda: kte.checkpoints.read(file)),
            "dd, read": _uncached(
                [file],
                lambda: _dd(f"bs={size}", f"if={file}", "of=/dev/null", "count=1"),
            ),
        },
        _REPETITIONS,
    )
    rates = {name: size / 1e6 / each for name, each in seconds.items()}
    return rates | {"GB": size / 1e9}


def _beside_orbax(
    directory: str, values: Mapping[str, np.ndarray], of: str = ""
) -> dict[str, float]:
    """Measures the seconds of saving and restoring by this package and by Orbax."""
    peer = OrbaxSaves(directory)
    seconds = median_seconds(
        {
            f"{of}save": lambda: kte.checkpoints.save(directory, 20, values),
            f"orbax, {of}save": lambda: peer.save(values),
        },
        _REPETITIONS,
    )
    file = kte.latest_checkpoint(directory) + ".h5"
    return seconds | median_seconds(
        {
            f"{of}restore": _uncached([file], lambda: kte.checkpoints.read(file)),
            f"orbax, {of}restore": _uncached([*peer.files()], peer.restore),
        },
        _REPETITIONS,
    )


def _dd(*arguments: str) -> None:
    subprocess.run(["dd", "status=none", *arguments], check=True)


def _uncached(paths: Iterable[str], read: Callable[[], object]) -> Callable[[], None]:
    """Removes files from the system's cache, and then calls a function."""

    def run() -> None:
        for path in paths:
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        read()

    return run


if __name__ == "__main__":
    print(json.dumps(measure()))
