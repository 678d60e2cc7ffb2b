"""A process that reads checkpoints, as a damaged one may crash the reader."""

import json
import resource
import subprocess
import sys
from typing import NamedTuple

import numpy as np

import keras_tpu_estimator as kte


class Outcome(NamedTuple):
    """What became of reading a checkpoint.

    Attributes:
        values: Sums of its bytes by variable; `None` if it was refused.
        error: The message, if it was.
        grown: By how many bytes the process grew meanwhile.
    """

    values: dict[str, int] | None
    error: str
    grown: int


def outcomes(prefixes: list[str]) -> list[Outcome]:
    """Reads checkpoints in one process.

    Raises:
        CalledProcessError: The process has crashed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.torture.reading"],
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


def _outcome(prefix: str) -> Outcome:
    before = _memory()
    try:
        reader = kte.load_checkpoint(prefix)
        names = reader.get_variable_to_shape_map()
        values = {name: _sum(reader.get_tensor(name)) for name in names}
        error = ""
    except ValueError as refusal:
        values, error = None, str(refusal)
    return Outcome(values, error, _memory() - before)


def _sum(value: np.ndarray) -> int:
    raw = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
    return int(np.sum(raw * np.arange(1, 1 + raw.size, dtype=np.uint64)))


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(_outcome(line.strip())), flush=True)
