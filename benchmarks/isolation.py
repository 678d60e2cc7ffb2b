"""Measurements in a separate process, which prints them as JSON."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def run_module(name: str, environment: Mapping[str, str] | None = None) -> Any:
    """Runs `python -m name` and returns the figures of its last line.

    Args:
        name: The module.
        environment: Environment variables to set in addition to the current ones.

    Raises:
        RuntimeError: The process failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", name],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        encoding="utf-8",
    )
    if done.returncode:
        raise RuntimeError(f"`python -m {name}` failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])
