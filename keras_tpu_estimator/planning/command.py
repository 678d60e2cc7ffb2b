"""The command that plans what a script would run."""

import argparse
import functools
import os
import pathlib
import sys
from collections.abc import Sequence

from keras_tpu_estimator.engine.device.executables import Executables
from keras_tpu_estimator.ground.base import scripts, sources
from keras_tpu_estimator.ground.storage import trusted
from keras_tpu_estimator.planning import compiling, shown_devices, topologies
from keras_tpu_estimator.planning.errors import CompileError, DoesNotFitError
from keras_tpu_estimator.planning.plans import PlanOptions, Refusal
from keras_tpu_estimator.planning.rehearsal import Rehearsal
from keras_tpu_estimator.runs.dry_run import replacing_calls
from keras_tpu_estimator.tf1 import running

# Options whose value may be the next argument.
_WITH_VALUE = ("--topology", "--save")

_EPILOG = """\
Every call of `train`, `evaluate` and `predict` is compiled for the topology in
place of being run: nothing is computed or written by it. Evaluations are NaN
then, and predictions are zeros. What else the script does, it does.
"""


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        f"python -m keras_tpu_estimator {name}",
        description="What each call of a script needs on a topology, by its compiler.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-m", action="store_true", help="SCRIPT is the name of a module"
    )
    parser.add_argument(
        "--topology",
        action="append",
        required=True,
        help="such as v5e:4x4, v5litepod-16, v4-32 or h100:1x8; several, with "
        "commas between them or each with --topology, are put side by side",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="takes a fraction of the time, shows no bytes, cycles and times",
    )
    parser.add_argument(
        "--save",
        metavar="FOLDER",
        help="stores what is compiled there, for RunConfig(executables=FOLDER)",
    )
    parser.add_argument(
        "--tf1",
        action=argparse.BooleanOptionalAction,
        help="whether it is a program of TensorFlow 1; by default one that "
        "imports tensorflow and not keras_tpu_estimator, in any of its files",
    )
    parser.add_argument("script", metavar="SCRIPT")
    return parser


def main(name: str, arguments: Sequence[str]) -> int:
    """Runs the command.

    Args:
        arguments: What follows it on the command line: its own arguments, and
            those of the script, of which what comes after "--" is the script's
            whatever it is called.

    Returns:
        0; 1 if something does not compile, or the script ends with an error;
        2 if there is nothing to plan.

    Raises:
        Exception: The script raised it before it came to anything to plan.
    """
    parser = _parser(name)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, others = _parsed(parser, [*arguments[:end]])
    others += arguments[end + 1 :]
    if options.script.endswith(".ipynb"):
        parser.error(
            f"SCRIPT must be a Python file. Received a notebook: "
            f"{options.script}. Convert it by `jupyter nbconvert --to script`."
        )
    # TensorFlow would say more than we do.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    names = [name for given in options.topology for name in given.split(",")]
    try:
        boards = topologies.parse_each(names)
        run_script = running.run if _is_tf1(options) else scripts.run
        how = PlanOptions(_store(options.save), options.quick)
    except (PermissionError, ValueError) as error:
        parser.error(str(error))
    if len({board.num_cores for board in boards}) > 1:
        sys.stderr.write(
            f"`jax.device_count()` returns {boards[0].num_cores}, as on "
            f"{boards[0].name}, the first topology.\n"
        )
    report = functools.partial(print, file=sys.stderr, flush=True)
    rehearsal = Rehearsal(boards, options=how, report=report)
    try:
        with (
            shown_devices.shown(boards[0]),
            compiling.without_cache(),
            replacing_calls(rehearsal),
        ):
            run_script(options.script, others, options.m)
    except (CompileError, DoesNotFitError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except (SystemExit, Exception) as error:
        is_end = isinstance(error, SystemExit) and not error.code
        if not (rehearsal.found or is_end):
            raise
        if not is_end:
            sys.stderr.write(
                "The script ended with an error, after what is planned above: "
                f"{type(error).__name__}: {error}\nLater calls are not "
                "planned.\n"
            )
            return 1
    if not rehearsal.found:
        sys.stderr.write(
            f"{options.script} has called no estimator. Expected calls of "
            "`train`, `evaluate` or `predict`: look at its arguments.\n"
        )
        return 2
    return any(isinstance(plan, Refusal) for plan in rehearsal.found)


def _parsed(
    parser: argparse.ArgumentParser, arguments: list[str]
) -> tuple[argparse.Namespace, list[str]]:
    """Parses arguments; those behind SCRIPT belong to the script.

    Only `--topology` and `--save` may also be written behind it.
    """
    before: list[str] = []
    while arguments and arguments[0].startswith("-"):
        before.append(arguments.pop(0))
        if before[-1] in _WITH_VALUE and arguments:
            before.append(arguments.pop(0))
    script, behind = arguments[:1], arguments[1:]
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--topology", action="append", default=[])
    own.add_argument("--save")
    found, others = own.parse_known_args(behind)
    for name in found.topology:
        before += ["--topology", name]
    if found.save is not None:
        before += ["--save", found.save]
    return parser.parse_args([*before, *script]), others


def _store(folder: str | None) -> Executables | None:
    """Where to store what is compiled, which is looked at first."""
    if folder is None:
        return None
    store = Executables(trusted.folder_string("--save", folder))
    store.prepare()
    return store


def _is_tf1(options: argparse.Namespace) -> bool:
    """Whether a program knows TensorFlow and not this package."""
    if options.tf1 is not None or options.m:
        return bool(options.tf1)
    imported = {
        name.partition(".")[0]
        for source in sources.read_program(pathlib.Path(options.script))
        for name in sources.imported_modules(source)
    }
    return "tensorflow" in imported and "keras_tpu_estimator" not in imported
