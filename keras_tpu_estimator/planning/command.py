"""The command `plan`, which plans the calls of a script."""

import argparse
import functools
import os
import sys
from collections.abc import Sequence

from keras_tpu_estimator.base.common import sources
from keras_tpu_estimator.base.storage import trusted
from keras_tpu_estimator.engine.device.executables import Executables
from keras_tpu_estimator.planning import compiling, topologies
from keras_tpu_estimator.planning.dry_run import DryRun, shown_devices
from keras_tpu_estimator.planning.errors import CompileError, DoesNotFitError
from keras_tpu_estimator.planning.kept_plans import KeptPlans
from keras_tpu_estimator.planning.plans import PlanOptions, Refusal
from keras_tpu_estimator.planning.search import SearchOptions
from keras_tpu_estimator.runs.call_receiver import receiving_calls
from keras_tpu_estimator.tf1 import command

# Options whose value may be the next argument.
_WITH_VALUE = ("--topology", "--slices", "--save", "--budget", "--keep", "--vary")

_EPILOG = """\
Options, except -h and -m, may also follow SCRIPT. Those after -- belong to it.
Each call of `train`, `evaluate` and `predict` is compiled for the topology instead
of being executed; it computes and writes nothing. Evaluations return NaN, and
predictions are zeros. All other code of the script runs.
"""


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        f"python -m keras_tpu_estimator {name}",
        description="Reports the cost of each call of a script on a topology.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-m", action="store_true", help="SCRIPT is the name of a module"
    )
    _add_options(parser)
    parser.add_argument("script", metavar="SCRIPT")
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that may precede or follow SCRIPT."""
    parser.add_argument(
        "--topology",
        action="append",
        default=[],
        help="such as v5e:4x4, v5litepod-16, v4-32 or h100:1x8; several, separated "
        "by commas or each with --topology, are shown side by side",
    )
    parser.add_argument(
        "--slices",
        type=int,
        default=1,
        metavar="N",
        help="the number of slices of each TPU topology, as in 2xv5e:16x16",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="optimizes less, in a fraction of the time; omits bytes, cycles and times",
    )
    parser.add_argument(
        "--search",
        action="store_true",
        help="compiles other options of training, and shows the fastest that fit",
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=float("inf"),
        metavar="MINUTES",
        help="minutes after which --search compiles no further candidate",
    )
    parser.add_argument(
        "--keep",
        metavar="FOLDER",
        help="keeps what --search has compiled there, for the next search",
    )
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        choices=("batch", "dtype"),
        help="with --search, also tries what changes the results: larger batches, or "
        "bfloat16 for activations and sums of gradients",
    )
    parser.add_argument(
        "--save",
        metavar="FOLDER",
        help="saves the compiled programs there, for RunConfig(executables=FOLDER)",
    )
    parser.add_argument(
        "--tf1",
        action=argparse.BooleanOptionalAction,
        help="whether SCRIPT is a TensorFlow 1 script; by default it is one if its "
        "files import tensorflow but not keras_tpu_estimator",
    )


def main(name: str, arguments: Sequence[str]) -> int:
    """Runs the command, and returns 0 for success, 1 if a program does not compile or
    the script fails, and 2 if the script calls no estimator.
    """
    parser = _parser(name)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, script_arguments = _parsed(parser, [*arguments[:end]])
    script_arguments += arguments[end + 1 :]
    if options.script.endswith(".ipynb"):
        parser.error(
            f"SCRIPT must be a Python file. Received a notebook: "
            f"{options.script}. Convert it by `jupyter nbconvert --to script`."
        )
    # TensorFlow's logs would hide the table.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    slices = f"{options.slices}x" if options.slices != 1 else ""
    names = [
        f"{slices}{name.strip()}"
        for listed in options.topology
        for name in listed.split(",")
    ]
    try:
        targets = topologies.parse_each(names)
        run_script = command.run if _is_tf1(options) else sources.run
        how = PlanOptions(_store(options.save), options.quick)
        search_options = _search_options(options)
    except (PermissionError, ValueError) as error:
        parser.error(str(error))
    if len({topology.num_cores for topology in targets}) > 1:
        sys.stderr.write(
            f"`jax.device_count()` returns {targets[0].num_cores}, as on "
            f"{targets[0].name}, the first topology.\n"
        )
    report = functools.partial(print, file=sys.stderr, flush=True)
    dry_run = DryRun(targets, print, how, report, search_options)
    try:
        with (
            shown_devices(targets[0]),
            compiling.without_cache(),
            receiving_calls(dry_run),
        ):
            run_script(options.script, script_arguments, options.m)
    except (CompileError, DoesNotFitError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except (SystemExit, Exception) as error:
        is_end = isinstance(error, SystemExit) and not error.code
        if not (dry_run.plans or is_end):
            raise
        if not is_end:
            sys.stderr.write(
                "The script failed after the plans above: "
                f"{type(error).__name__}: {error}\nLater calls are not "
                "planned.\n"
            )
            return 1
    if not dry_run.plans:
        sys.stderr.write(
            f"{options.script} must call `train`, `evaluate` or `predict`. Received: "
            "a script without such calls. Check its arguments.\n"
        )
        return 2
    return any(isinstance(plan, Refusal) for plan in dry_run.plans)


def _parsed(
    parser: argparse.ArgumentParser, arguments: list[str]
) -> tuple[argparse.Namespace, list[str]]:
    """Parses the command's options, and returns the script's arguments separately."""
    before: list[str] = []
    while arguments and arguments[0].startswith("-"):
        before.append(arguments.pop(0))
        if before[-1] in _WITH_VALUE and arguments:
            before.append(arguments.pop(0))
    options = parser.parse_args([*before, *arguments[:1]])
    behind = argparse.ArgumentParser(
        parser.prog, parser.format_usage()[7:], add_help=False, allow_abbrev=False
    )
    _add_options(behind)
    options, script_arguments = behind.parse_known_args(arguments[1:], options)
    if not options.topology:
        parser.error("--topology is required, such as --topology v5e:4x4")
    return options, script_arguments


def _search_options(options: argparse.Namespace) -> SearchOptions | None:
    """Returns the options of a search, if one is requested.

    Raises:
        ValueError: The options contradict each other.
        PermissionError: Other users may write to the folder of plans.
    """
    of_search = options.vary or options.keep or options.budget != float("inf")
    if not options.search:
        if of_search:
            raise ValueError(
                "--budget, --keep and --vary must follow --search. Received: without "
                "it. Add it, or omit them."
            )
        return None
    if options.save or options.quick:
        raise ValueError(
            "--search must not be combined with --save or --quick. Received: both. "
            "Write its best options into the script, and plan that."
        )
    return SearchOptions(
        60 * options.budget,
        "batch" in options.vary,
        "dtype" in options.vary,
        None if options.keep is None else KeptPlans.prepared(options.keep),
    )


def _store(folder: str | None) -> Executables | None:
    """Returns the store of compiled programs, after checking it."""
    if folder is None:
        return None
    store = Executables(trusted.folder_string("--save", folder))
    store.prepare()
    return store


def _is_tf1(options: argparse.Namespace) -> bool:
    """Returns whether a script imports TensorFlow but not this package."""
    if options.tf1 is not None or options.m:
        return bool(options.tf1)
    imported = sources.imported_packages(options.script)
    return "tensorflow" in imported and "keras_tpu_estimator" not in imported
