"""The separate processes of an export, which run a script without this package."""

import os
import pathlib
import sys


def command(script: pathlib.Path) -> list[str]:
    """Returns the arguments that run a script of this folder."""
    # -P prevents modules of this folder from shadowing others.
    return [sys.executable, "-P", str(script)]


def environment(**variables: str) -> dict[str, str]:
    """Returns the environment of a process that uses TensorFlow on the CPU."""
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        # The encoding of its input and output, also on Windows.
        "PYTHONUTF8": "1",
        **variables,
    }
