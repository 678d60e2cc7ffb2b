"""A process that reads checkpoints, because corrupt ones may crash the reader."""

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import jax
import numpy as np


class Outcome(NamedTuple):
    """The outcome of reading a checkpoint.

    Attributes:
        values: The sums of its bytes by variable, or `None` if it was refused.
        error: The error message, if it was refused.
        grown: The number of bytes by which the process grew.
    """

    values: dict[str, int] | None
    error: str
    grown: int


def outcomes(prefixes: list[str], is_alone: bool = False) -> list[Outcome]:
    """Reads checkpoints in one process.

    Args:
        prefixes: The prefixes of the checkpoints.
        is_alone: Whether Orbax reads them without this package. Defaults to `False`.

    Raises:
        CalledProcessError: The process has crashed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.torture.reading", *["alone"] * is_alone],
        input="\n".join(prefixes),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode:
        raise subprocess.CalledProcessError(
            done.returncode,
            f"reading {prefixes[len(lines)]}",
            stderr=done.stderr,
        )
    return [Outcome(*json.loads(line)) for line in lines]


def _outcome(prefix: str, read: Callable[[str], dict[str, Any]]) -> Outcome:
    before = _memory()
    try:
        values = {name: _sum(value) for name, value in read(prefix).items()}
        error = ""
    except ValueError as refusal:
        values, error = None, str(refusal)
    return Outcome(values, error, _memory() - before)


def _read(prefix: str) -> dict[str, Any]:
    reader = kte.load_checkpoint(prefix)
    names = reader.get_variable_to_shape_map()
    return {name: reader.get_tensor(name) for name in names}


def _read_alone(folder: str) -> dict[str, Any]:
    import orbax.checkpoint as ocp

    try:
        with ocp.StandardCheckpointer() as checkpointer:
            return checkpointer.restore(folder)
    except Exception as error:  # Any error is an outcome.
        raise ValueError(str(error)) from error


def _sum(value: np.ndarray) -> int:
    raw = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
    return int(np.sum(raw * np.arange(1, 1 + raw.size, dtype=np.uint64)))


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    read = _read
    if sys.argv[1:] == ["alone"]:
        # Orbax needs the original number of devices.
        jax.config.update("jax_num_cpu_devices", 8)
        read = _read_alone
    for line in sys.stdin:
        print(json.dumps(_outcome(line.strip(), read)), flush=True)
