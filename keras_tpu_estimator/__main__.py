"""What is done around a training: `python -m keras_tpu_estimator`.

`plan SCRIPT` says what a script needs on a TPU that need not be there. Of what
training has written, `info PATH` shows the checkpoints of a directory, the
variables of the latest one and the last results; `verify PATH` reads
checkpoints and says which are damaged.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from keras_tpu_estimator.inspection.directories import Directory
from keras_tpu_estimator.inspection.printing import as_text
from keras_tpu_estimator.inspection.printing import verdicts_as_text
from keras_tpu_estimator.inspection.verifying import verify
from keras_tpu_estimator.planning import command


def main(arguments: Sequence[str]) -> int:
    """Runs the command.

    Args:
        arguments: Those of the command line.

    Returns:
        0; 1 if a checkpoint is damaged, or a script does not compile; 2 if
        there is none.
    """
    parser = argparse.ArgumentParser(
        "python -m keras_tpu_estimator", description=__doc__
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("info", "checkpoints, variables and last results"),
        ("verify", "reads all of each checkpoint; exit status 1 if damaged"),
    ):
        reader = commands.add_parser(name, help=text, description=text)
        reader.add_argument(
            "path",
            metavar="PATH",
            help="a model_dir, or a checkpoint, such as run/model.ckpt-20",
        )
    text = "what each call of a script needs on a topology, by its compiler"
    plan = commands.add_parser(
        "plan", help=text, description=text, allow_abbrev=False
    )
    command.add_arguments(plan)
    # What comes after "--" is a script's, whatever it is called.
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, others = parser.parse_known_args(arguments[:end])
    others += arguments[end + 1 :]
    # TensorFlow, which reads its own checkpoints, would say more than we do.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.command == "plan":
        return command.run(plan, options, others)
    if others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
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
