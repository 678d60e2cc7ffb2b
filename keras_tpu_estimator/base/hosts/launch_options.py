"""The options of the commands that start scripts as processes of a cluster."""

import argparse
import re
import sys


def add_restart_options(parser: argparse.ArgumentParser, max_restarts: int) -> None:
    """Adds the options of restarts, with a default of their number."""
    parser.add_argument(
        "--grace",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="seconds between SIGTERM and SIGKILL for the other processes "
        "after one has failed (default: %(default)s)",
    )
    parser.add_argument(
        "--max-restarts",
        type=natural,
        default=max_restarts,
        metavar="N",
        help="number of times that all processes start again after a signal, a lost "
        "process or an error of the storage (default: %(default)s)",
    )
    parser.add_argument(
        "--min-processes",
        type=positive,
        metavar="M",
        help="number of processes with which the job may continue, if one of them "
        "fails first twice, or its host is lost (default: all)",
    )


def add_script(parser: argparse.ArgumentParser) -> None:
    """Adds the script and its arguments, which come last."""
    parser.add_argument(
        "-m",
        dest="module",
        action="store_true",
        help="the script is the name of a module, as in python -m",
    )
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)


def command_of(options: argparse.Namespace) -> list[str]:
    """Returns the command that runs the script."""
    module = ["-m"] if options.module else []
    return [sys.executable, *module, options.script, *options.arguments]


def positive(text: str) -> int:
    """Returns a positive integer of the command line."""
    if not re.fullmatch("0*[1-9][0-9]*", text):
        raise argparse.ArgumentTypeError(
            f"must be a positive integer. Received: {text!r}"
        )
    return int(text)


def natural(text: str) -> int:
    """Returns an integer of the command line that is not negative."""
    return 0 if re.fullmatch("0+", text) else positive(text)
