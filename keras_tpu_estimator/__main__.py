"""The commands of the package: `python -m keras_tpu_estimator COMMAND`."""

import argparse
import importlib
import sys
from collections.abc import Sequence

_PACKAGE = "keras_tpu_estimator"

# Where the `main` of each is, which takes what follows its name.
COMMANDS = {
    "plan": (
        "planning.command",
        "says what a script needs on a TPU that need not be there",
    ),
    "info": (
        "files.inspection.command",
        "shows the checkpoints, variables and last results of a directory",
    ),
    "verify": (
        "files.inspection.command",
        "reads all of each checkpoint, and reports which are corrupt",
    ),
    "launch": (
        "ground.hosts.launching",
        "starts a script in several processes of this machine, as one cluster",
    ),
    "tf1": ("tf1.command", "runs a program of TensorFlow 1 as it is"),
    "check": (
        "tf1_tools.check.command",
        "says what a program of TensorFlow 1 uses, without running it",
    ),
}


def main(arguments: Sequence[str]) -> int:
    """Runs a command.

    Args:
        arguments: Those of the command line, the command's name first.

    Returns:
        What the command returns; by convention 0 if all is well, 1 if what was
        looked at is not, and 2 if there is nothing to look at.
    """
    parser = argparse.ArgumentParser(
        f"python -m {_PACKAGE}",
        description="Each command has its own --help.",
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND"
    )
    for name, (_, text) in COMMANDS.items():
        commands.add_parser(name, help=text, add_help=False)
    chosen, _ = parser.parse_known_args(arguments[:1])
    module, _ = COMMANDS[chosen.command]
    command = importlib.import_module(f"{_PACKAGE}.{module}")
    status: int = command.main(chosen.command, arguments[1:])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
