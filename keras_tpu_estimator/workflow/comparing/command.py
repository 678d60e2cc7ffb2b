"""The command `compare`, which compares two scripts."""

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from keras_tpu_estimator.workflow.comparing import call_results, compare
from keras_tpu_estimator.workflow.comparing.differences import TrainingComparison
from keras_tpu_estimator.workflow.comparing.report import ComparisonReport
from keras_tpu_estimator.workflow.comparing.script_runs import ScriptRecord, record_path

_EPILOG = """\
Both scripts run until they call `train` a second time. Their first calls of `train`,
`evaluate` and `predict` are compared, with the batches of OLD. The exit status is 0 if
the programs are one, 1 if they differ, and 2 if one could not run.
"""
_NOT_CALLED = (
    "The new script does not evaluate or predict as the old one does, so that part is "
    "not compared."
)
# The three runs of equal programs compile their steps once.
_CACHE = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
}
_CHILD = "keras_tpu_estimator.workflow.comparing.child"


def main(name: str, arguments: Sequence[str]) -> int:
    """Runs the command, and returns the exit status."""
    parser = argparse.ArgumentParser(
        f"python -m keras_tpu_estimator {name}",
        description="Compares two scripts that train estimators.",
        epilog=_EPILOG,
        usage="%(prog)s [options] OLD [ARGUMENTS] --to NEW [ARGUMENTS]",
        allow_abbrev=False,
    )
    parser.add_argument("--from", dest="checkpoint", help="a checkpoint of OLD")
    parser.add_argument("--steps", type=int, default=10, help="default: 10")
    parser.add_argument("--tolerance", type=float, default=1e-5, help="default: 1e-5")
    parser.add_argument("--mapping", help="a JSON file of paths of NEW by those of OLD")
    parser.add_argument("--json", metavar="FILE", help="writes the report there")
    parser.add_argument("scripts", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if "--to" not in options.scripts:
        parser.error("expected OLD [ARGUMENTS] --to NEW [ARGUMENTS]")
    middle = options.scripts.index("--to")
    old, new = options.scripts[:middle], options.scripts[middle + 1 :]
    for script in (old, new):
        if not script or not pathlib.Path(script[0]).is_file():
            parser.error(f"expected the path of a script, not {script[:1]}")
    with tempfile.TemporaryDirectory() as directory:
        if not (
            _ran(directory, "old", old, options)
            and _ran(directory, "new", new, options)
        ):
            return 2
        report = _report(directory, options.tolerance)
    sys.stdout.write(f"{report}\n")
    if options.json is not None:
        pathlib.Path(options.json).write_text(report.as_json(), encoding="utf-8")
    return 0 if report.is_equal else 1


def _ran(directory: str, role: str, script: Sequence[str], options: Any) -> bool:
    """Runs a script in another process, and returns whether it succeeded."""
    settings = {
        "checkpoint": options.checkpoint,
        "steps": options.steps,
        "mapping": options.mapping,
    }
    environment = {**_CACHE, **os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(directory, "xla"))
    command = [sys.executable, "-m", _CHILD, directory, role, json.dumps(settings)]
    sys.stderr.write(f"Running the {role} script, {' '.join(script)} ...\n")
    result = subprocess.run(
        [*command, *script],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    path = record_path(directory, role)
    if result.returncode == 0 and os.path.exists(path):
        return True
    # Its log is of no interest otherwise.
    sys.stderr.write(result.stderr.decode(errors="replace"))
    sys.stderr.write(f"The {role} script, {script[0]}, could not be compared.\n")
    return False


def _report(directory: str, tolerance: float) -> ComparisonReport:
    """Returns the report on the records of both scripts."""
    old = ScriptRecord.load(record_path(directory, "old"))
    new = ScriptRecord.load(record_path(directory, "new"))
    first, copies = old.training
    results = [
        TrainingComparison(first, new.training, copies, new.pairing, tolerance).run()
    ]
    for compared, of_old, of_new in (
        (call_results.of_evaluations, old.evaluation, new.evaluation),
        (call_results.of_predictions, old.prediction, new.prediction),
    ):
        if of_old and not of_new:
            new = dataclasses.replace(new, notes=(*new.notes, _NOT_CALLED))
        elif of_old and results[-1].finding is None:
            results.append(compared(of_old[0], of_new, of_old[1], tolerance))
    if old.export and not new.export:
        new = dataclasses.replace(new, notes=(*new.notes, _NOT_CALLED))
    elif old.export and new.export and results[-1].finding is None:
        results.append(call_results.of_exports(old.export, new.export))
    notes = (*old.notes, *new.notes)
    return compare.report_of(results, first, new.training, new.pairing, notes)
