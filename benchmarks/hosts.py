"""The time that several processes need to agree after each loop."""

import json
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.table import Goal, Row

_SIMULATED = (16, 64, 256, 1024)
_LAUNCH = ("keras_tpu_estimator", "launch")


def rows() -> Iterator[Row]:
    """Returns rows for the time of an agreement, relative to a loop of one second."""
    for count in (2, 4):
        yield Row(
            f"agreement of {count} hosts, against a loop of one second",
            _seconds(count),
            1.0,
            "s",
            Goal("ratio", most=0.02),
        )
    for count in _SIMULATED:
        found = _simulated(count)
        yield Row(
            f"agreement of {count} simulated hosts, against 1 ms for each",
            found["msecs"],
            float(count),
            "ms",
            Goal("ratio", most=1.0),
        )
        yield Row(
            f"requests of one of {count} hosts for it",
            found["requests"],
            4.0,
            "requests",
            Goal("ratio", most=1.0),
        )


def _simulated(count: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.simulated_hosts", str(count)],
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _seconds(count: int) -> float:
    command = (*_LAUNCH, "--processes", str(count), "--cores", "1")
    done = subprocess.run(
        [sys.executable, "-m", *command, "-m", "benchmarks.hosts_talk"],
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    # Each line begins with the number of its process.
    said = [line.partition("] ")[2] for line in done.stdout.splitlines()]
    return max(json.loads(line)["seconds"] for line in said if line[:1] == "{")
