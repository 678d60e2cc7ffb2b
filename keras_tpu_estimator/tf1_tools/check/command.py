"""The command `check`: what a program of TensorFlow 1 uses."""

import argparse
import os
import pathlib
import sys
from collections.abc import Sequence

from keras_tpu_estimator.tf1_tools.check.checking import check
from keras_tpu_estimator.tf1_tools.check.printing import as_json, as_text


def main(name: str, arguments: Sequence[str]) -> int:
    """Runs the command.

    Args:
        name: Its name.
        arguments: What follows it on the command line.

    Returns:
        0 if the program runs as it is, as far as its source tells; 1 if
        something is missing or refused; 2 if there is no program.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m keras_tpu_estimator {name}",
        description="Reads a program of TensorFlow 1 without running it: what "
        "runs as it is, what does not, and what replaces it in Keras.",
    )
    parser.add_argument(
        "path",
        type=pathlib.Path,
        metavar="PATH",
        help="a folder, or a file, with which those are read that it imports "
        "from its folder",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, with all places"
    )
    options = parser.parse_args(arguments)
    # TensorFlow, which is asked for what it has, would say more than we do.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        report = check(options.path)
    except ValueError as error:
        parser.error(str(error))
    path = options.path
    start = path if path.is_dir() else path.parent
    text = as_json(report) if options.json else as_text(report, start)
    sys.stdout.write(text + "\n")
    return 0 if report.runs else 1
