"""Runs a program of TensorFlow 1: `python -m keras_tpu_estimator.tf1 SCRIPT`.

What follows the script is the script's. A module is given with `-m`, as to
Python itself.
"""

import argparse
import os
import sys

from keras_tpu_estimator.tf1.running import run


def main(arguments: list[str]) -> None:
    """Reads the command line and runs the program."""
    parser = argparse.ArgumentParser(
        "python -m keras_tpu_estimator.tf1", description=__doc__
    )
    parser.add_argument(
        "-m", action="store_true", help="SCRIPT is the name of a module"
    )
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument(
        "arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER
    )
    given = parser.parse_args(arguments)
    if not given.m and not os.path.isfile(given.script):
        parser.error(
            f"Expected the path of a script. Received: {given.script!r}, which "
            "is no file. Give a module with -m."
        )
    run(given.script, given.arguments, given.m)


if __name__ == "__main__":
    main(sys.argv[1:])
