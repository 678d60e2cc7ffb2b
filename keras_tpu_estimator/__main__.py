"""The commands of the package: `python -m keras_tpu_estimator COMMAND`."""

import sys
from collections.abc import Sequence

from keras_tpu_estimator.base.common import registry
from keras_tpu_estimator.base.common.command_line import parse_command
from keras_tpu_estimator.parts import COMMANDS

_PACKAGE = "keras_tpu_estimator"


def main(arguments: Sequence[str]) -> int:
    """Runs a command.

    Args:
        arguments: The arguments of the command line, beginning with the
            command's name.

    Returns:
        The exit status: 0 for success, 1 if the command found a problem, and 2
        if it found no input.
    """
    name = parse_command(arguments, sys.modules[_PACKAGE].__version__, COMMANDS)
    status: int = registry.part(f"command {name}").main(name, arguments[1:])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
