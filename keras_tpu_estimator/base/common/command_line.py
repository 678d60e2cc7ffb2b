"""The command line of the package, without the imports that the commands need."""

import argparse
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


def parse_command(arguments: Sequence[str], version: str) -> str:
    """Returns the name of the command, or exits with the help, version or an error."""
    parser = argparse.ArgumentParser(
        f"python -m {_PACKAGE}",
        description="Each command has its own --help.",
    )
    parser.add_argument("--version", action="version", version=f"{_PACKAGE} {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, text) in COMMANDS.items():
        commands.add_parser(name, help=text, add_help=False)
    options, _ = parser.parse_known_args(arguments[:1])
    command: str = options.command
    return command


def answer_without_imports(version: str) -> None:
    """Exits at once from `python -m keras_tpu_estimator`, unless a command follows.

    The import of Keras takes seconds. While Python looks for the module of `-m`, the
    first argument is '-m'.
    """
    name, *arguments = sys.argv or [""]
    command = ["-m", _PACKAGE, *arguments]
    if name == "-m" and sys.orig_argv[-len(command) :] == command:
        parse_command(arguments, version)
