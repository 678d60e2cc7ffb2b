"""The commands `info` and `verify`: what training has written."""

import argparse
import os
import sys
from collections.abc import Sequence

from keras_tpu_estimator.files.inspection.directories import Directory
from keras_tpu_estimator.files.inspection.printing import as_text
from keras_tpu_estimator.files.inspection.printing import verdicts_as_text
from keras_tpu_estimator.files.inspection.verifying import verify_all


def main(name: str, arguments: Sequence[str]) -> int:
    """Runs a command.

    Args:
        arguments: What follows it on the command line.

    Returns:
        0; 1 if a checkpoint is damaged, or listed and gone; 2 if there is none.
    """
    parser = argparse.ArgumentParser(
        f"python -m keras_tpu_estimator {name}",
        description="Shows the checkpoints of a directory, the variables of "
        "the latest one and the last results."
        if name == "info"
        else "Reads all of each checkpoint. The exit status is 1 if one is "
        "damaged, or gone although the `checkpoint` file lists it.",
    )
    parser.add_argument(
        "path",
        metavar="PATH",
        help="a model_dir, or a checkpoint, such as run/model.ckpt-20",
    )
    options = parser.parse_args(arguments)
    # TensorFlow, which reads its own checkpoints, would say more than we do.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        if name == "info":
            sys.stdout.write(as_text(Directory.of(options.path)) + "\n")
            return 0
        verdicts = verify_all(options.path)
    except ValueError as error:
        parser.error(str(error))
    sys.stdout.write(verdicts_as_text(verdicts) + "\n")
    return 0 if all(verdict.is_intact for verdict in verdicts) else 1
