"""Looks at what training has written: `python -m keras_tpu_estimator`.

`info PATH` shows the checkpoints of a directory, the variables of the latest
one and the last results; `verify PATH` reads checkpoints and says which are
damaged.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from keras_tpu_estimator.inspection.directories import Directory
from keras_tpu_estimator.inspection.printing import as_text
from keras_tpu_estimator.inspection.printing import verdicts_as_text
from keras_tpu_estimator.inspection.verifying import verify


def main(arguments: Sequence[str]) -> int:
    """Runs the command.

    Args:
        arguments: Those of the command line.

    Returns:
        0; 1 if a checkpoint is damaged; 2 if there is none.
    """
    parser = argparse.ArgumentParser(
        "python -m keras_tpu_estimator", description=__doc__
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("info", "checkpoints, variables and last results"),
        ("verify", "reads all of each checkpoint; exit status 1 if damaged"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument(
            "path",
            metavar="PATH",
            help="a model_dir, or a checkpoint, such as run/model.ckpt-20",
        )
    options = parser.parse_args(arguments)
    # TensorFlow, which reads its own checkpoints, would say more than we do.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        directory = Directory.of(options.path)
    except ValueError as error:
        parser.error(str(error))
    if options.command == "info":
        sys.stdout.write(as_text(directory) + "\n")
        return 0
    verdicts = [verify(each.prefix) for each in directory.checkpoints]
    sys.stdout.write(verdicts_as_text(verdicts) + "\n")
    return 0 if all(verdict.is_intact for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
