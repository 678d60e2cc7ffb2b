"""Runs tests in a copy of this project without its TF1 rooms and its plans.

    python -m tests.without_tools               # All tests that do not concern them.
    python -m tests.without_tools tests/hooks   # Some, with options of pytest.

A test file concerns them if it names them, or all public names.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).parents[1]
REMOVED = ("tf1", "tf1_tools", "planning")
# The folders of tests of these rooms.
_TESTS_OF_REMOVED = ("tf1", "check", "planning", "tpu")
_CONCERNS = re.compile(r"\btf1\b|TF1|tf1_tools|planning|\.plan\(|\"plan\"|__all__")
_LEFT_OUT = shutil.ignore_patterns(".git", "__pycache__", ".pytest_cache", "*.pyc")


def copy_without_tools(target: pathlib.Path) -> None:
    """Copies this project without the rooms and the tests that concern them."""
    shutil.copytree(ROOT, target, ignore=_LEFT_OUT, symlinks=True)
    for name in REMOVED:
        shutil.rmtree(target / "keras_tpu_estimator" / name)
    for name in _TESTS_OF_REMOVED:
        shutil.rmtree(target / "tests" / name)
    for path in (target / "tests").rglob("test_*.py"):
        if _CONCERNS.search(path.read_text()):
            path.unlink()


def main(arguments: Sequence[str]) -> int:
    """Runs pytest in the copy, and returns its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder, "project")
        copy_without_tools(target)
        return subprocess.run(
            [sys.executable, "-m", "pytest", *(arguments or ["tests"])],
            cwd=target,
            env={**os.environ, "PYTHONPATH": str(target)},
            check=False,
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
