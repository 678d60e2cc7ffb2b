"""The command line of the package, without the imports that the commands need."""

import argparse
import sys
from collections.abc import Mapping, Sequence

_PACKAGE = "keras_tpu_estimator"


def parse_command(
    arguments: Sequence[str], version: str, commands: Mapping[str, str]
) -> str:
    """Returns the name of the command, or exits with the help, version or an error;
    `commands` has a line of help for each.
    """
    parser = argparse.ArgumentParser(
        f"python -m {_PACKAGE}",
        description="Each command has its own --help.",
    )
    parser.add_argument("--version", action="version", version=f"{_PACKAGE} {version}")
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in commands.items():
        parsers.add_parser(name, help=text, add_help=False)
    options, _ = parser.parse_known_args(arguments[:1])
    command: str = options.command
    return command


def running_command(version: str, commands: Mapping[str, str]) -> str | None:
    """Returns the command if Python runs `python -m keras_tpu_estimator`.

    It exits at once with the help, version or an error unless a command follows,
    because the import of Keras takes seconds. While Python looks for the module of
    `-m`, the first argument is '-m'.
    """
    name, *arguments = sys.argv or [""]
    command = ["-m", _PACKAGE, *arguments]
    if name == "-m" and sys.orig_argv[-len(command) :] == command:
        return parse_command(arguments, version, commands)
    return None
