"""The commands of the package: `python -m keras_tpu_estimator COMMAND`."""

import argparse
import importlib
import sys
from collections.abc import Sequence

_PACKAGE = "keras_tpu_estimator"

# The path of each command's `main`, which receives the remaining arguments.
COMMANDS = {
    "plan": (
        "planning.command",
        "reports the cost of a script on a TPU, without needing one",
    ),
    "info": (
        "files.inspection",
        "shows the checkpoints, variables and last results of a directory",
    ),
    "verify": (
        "files.inspection",
        "reads each checkpoint completely, and reports corrupt ones",
    ),
    "launch": (
        "base.hosts.launching",
        "starts a script in several processes of this machine, as one cluster",
    ),
    "tf1": ("tf1.command", "runs a TensorFlow 1 script without changes"),
    "check": (
        "tf1_tools.check.command",
        "reports the TensorFlow 1 calls of a script, without running it",
    ),
}


def main(arguments: Sequence[str]) -> int:
    """Runs a command.

    Args:
        arguments: The arguments of the command line, beginning with the
            command's name.

    Returns:
        The exit status: 0 for success, 1 if the command found a problem, and 2
        if it found no input.
    """
    parser = argparse.ArgumentParser(
        f"python -m {_PACKAGE}",
        description="Each command has its own --help.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, text) in COMMANDS.items():
        commands.add_parser(name, help=text, add_help=False)
    chosen, _ = parser.parse_known_args(arguments[:1])
    module, _ = COMMANDS[chosen.command]
    command = importlib.import_module(f"{_PACKAGE}.{module}")
    status: int = command.main(chosen.command, arguments[1:])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
