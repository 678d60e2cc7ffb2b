"""The tests that are too many or too slow for each run of the suite."""

import pathlib
import re
import subprocess
import sys

from tests.torture.figures import expect

_ROOT = pathlib.Path(__file__).parents[2]


def slow(directory: str) -> dict[str, object]:
    """Runs the tests that are marked as slow.

    Args:
        directory: An empty directory.

    Returns:
        Counts by their description.

    Raises:
        ViolationError: A test failed, or no test was found.
    """
    options = ("-q", "-m", "slow", "--basetemp", f"{directory}/tests")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    expect(done.returncode == 0, f"Slow tests pass: {done.stdout}")
    (number,) = re.findall(r"(\d+) passed", done.stdout)
    return {"slow tests": int(number)}
