"""The command `tf1`: runs a program of TensorFlow 1 as it is."""

import argparse
import os
from collections.abc import Sequence

from keras_tpu_estimator.tf1.running import run


def main(name: str, arguments: Sequence[str]) -> int:
    """Reads the command line and runs the program.

    Args:
        name: That of the command.
        arguments: What follows it on the command line.

    Returns:
        0; a program that ends with another status does so itself.
    """
    parser = argparse.ArgumentParser(
        f"python -m keras_tpu_estimator {name}",
        description="Runs a program of TensorFlow 1. What follows the script "
        "is the script's. A module is given with -m, as to Python itself.",
    )
    parser.add_argument(
        "-m", action="store_true", help="SCRIPT is the name of a module"
    )
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    if not given.m and not os.path.isfile(given.script):
        parser.error(
            f"Expected the path of a script. Received: {given.script!r}, which "
            "is no file. Give a module with -m."
        )
    run(given.script, given.arguments, given.m)
    return 0
