"""The command `tf1`, which runs a TensorFlow 1 script unchanged."""

import argparse
import os
from collections.abc import Sequence

from keras_tpu_estimator.tf1.running import run


def main(name: str, arguments: Sequence[str]) -> int:
    """Reads the command line and runs the script.

    Returns:
        0. A script that ends with another status exits with it directly.
    """
    parser = argparse.ArgumentParser(
        f"python -m keras_tpu_estimator {name}",
        description="Runs a TensorFlow 1 script. All arguments after the script "
        "are passed to it. Use -m to run a module, as with python -m.",
    )
    parser.add_argument(
        "-m", action="store_true", help="SCRIPT is the name of a module"
    )
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    if not given.m and not os.path.isfile(given.script):
        parser.error(
            f"SCRIPT must be the path of a script. Received: {given.script!r}, which "
            "is not a file. Use -m for a module."
        )
    run(given.script, given.arguments, given.m)
    return 0
