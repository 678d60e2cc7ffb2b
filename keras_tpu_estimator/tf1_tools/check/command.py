"""The command `check`: its entry point, and its report as text and JSON."""

import argparse
import ast
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

from keras_tpu_estimator.base.common.sources import (
    Source,
    current_folder,
    folders_on_path,
    read_program,
)
from keras_tpu_estimator.tf1.names import porting
from keras_tpu_estimator.tf1.shims.importing import tf1_for
from keras_tpu_estimator.tf1_tools.check.python_2 import (
    calls_of_python_2_in,
    mixed_tabs_in,
    prints_to_file,
    python_2_in,
)
from keras_tpu_estimator.tf1_tools.check.reached import Grade, RunningCode
from keras_tpu_estimator.tf1_tools.check.scopes import Scope, scopes_of
from keras_tpu_estimator.tf1_tools.check.uses import (
    Unfollowed,
    Use,
    absent_in,
    of_python_2_in,
    old_protocols_in,
    uses_in,
)
from keras_tpu_estimator.tf1_tools.check.verdicts import Judge, Judgement, Verdict

# The verdicts that stop a script if it needs the name.
STOPPING = (Verdict.MISSING, Verdict.REFUSED, Verdict.ABSENT)
# The verdicts of names that a script can do without where it guards their use.
_DISMISSED = (Verdict.MISSING, Verdict.ABSENT)


@dataclasses.dataclass(frozen=True)
class Finding:
    """A name and all places where it has the same verdict.

    Attributes:
        grade: Whether the script needs the code at these places.
        advice: The change or installation that the script needs, or "".
        counterpart: The name that replaces it in a port to Keras, if known.
    """

    name: str
    verdict: Verdict
    grade: Grade
    uses: tuple[Use, ...]
    advice: str
    counterpart: porting.Counterpart | None


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of checking a script, with findings sorted by verdict and name.

    Attributes:
        unfollowed: Code that may use TensorFlow, but cannot be followed.
        unreadable: Code that is not Python 3.
    """

    files: tuple[pathlib.Path, ...]
    findings: tuple[Finding, ...]
    unfollowed: tuple[Unfollowed, ...]
    unreadable: tuple[Unfollowed, ...]

    @property
    def runs(self) -> bool:
        """Whether the script has no name or argument that stops it."""
        return not self.unreadable and not self.needed

    @property
    def needed(self) -> list[Finding]:
        """The findings that stop the script."""
        return [
            finding
            for finding in self.findings
            if finding.verdict in STOPPING and finding.grade is Grade.NEEDED
        ]

    def with_verdict(
        self, verdict: Verdict, grade: Grade | None = None
    ) -> list[Finding]:
        """Returns the findings with one verdict, and with one grade if it is given."""
        return [
            finding
            for finding in self.findings
            if finding.verdict is verdict and grade in (None, finding.grade)
        ]


def check(path: pathlib.Path) -> Report:
    """Checks a folder, or a file and the modules that it imports, without running them.

    The modules are read from the file's own folder, from folders on `PYTHONPATH`, and
    from the current folder if Python searches it. A path without a Python file raises a
    ValueError.
    """
    current, on_path = current_folder(), folders_on_path()
    folders = [current, *on_path] if current else on_path
    sources = read_program(path, folders)
    program = scopes_of(sources)
    names = {part for name in program for part in name.split(".")}
    if path.is_dir():
        names.add(path.resolve().name)
    functions = {
        node.name
        for module in program.values()
        for node in ast.walk(module.node)
        if isinstance(node, ast.FunctionDef)
    }
    remarks = [
        remark
        for module in program.values()
        for remark in _found_in(module, names, functions)
    ]
    uses = [use for use in remarks if isinstance(use, Use)]
    unfollowed = [remark for remark in remarks if isinstance(remark, Unfollowed)]
    starts = [module for module in program.values() if module.source.path == path]
    code = RunningCode.from_program(program, starts[0] if starts else None)
    # Libraries that supply names are imported as in a run.
    with tf1_for(folders):
        judged, dismissed = _judged(uses, program, code)
    return Report(
        tuple(source.path for source in sources),
        tuple(judged),
        tuple([*unfollowed, *dismissed]),
        tuple(remark for source in sources for remark in _unreadable(source)),
    )


def _found_in(
    module: Scope, names: Container[str], functions: Container[str]
) -> Iterator[Use | Unfollowed]:
    """Yields the uses and remarks of a module, with the names of its program."""
    yield from uses_in(module, names)
    yield from absent_in(module, names)
    yield from of_python_2_in(module)
    yield from calls_of_python_2_in(module, functions)
    yield from old_protocols_in(module)


def _unreadable(source: Source) -> Iterator[Unfollowed]:
    """Yields the Python 2 syntax of a file that is not Python 3, or its error."""
    if not source.error and not prints_to_file(source.tree):
        return
    text = source.path.read_text("utf-8", errors="replace")
    problems = [*python_2_in(text)]
    tabs = mixed_tabs_in(source.error)
    if tabs or not problems:
        problems = [(source.line, tabs or source.error), *problems]
    for line, what in problems:
        yield Unfollowed(source.path, line, what)


def _judged(
    uses: Iterable[Use], program: dict[str, Scope], code: RunningCode
) -> tuple[list[Finding], list[Unfollowed]]:
    """Returns the findings, and the uses that the script guards."""
    uses = [*uses]
    judge = Judge.from_program(uses, program, code)
    uses_by_judgement: dict[tuple[Judgement, str], list[Use]] = {}
    dismissed: list[Unfollowed] = []
    for use in uses:
        judgement = judge.judge(use)
        if judgement.verdict in _DISMISSED and use.is_guarded:
            state = judgement.verdict.value
            what = f"{use.name} is {state}, but its use is guarded"
            dismissed.append(Unfollowed(use.path, use.line, what))
        else:
            uses_by_judgement.setdefault((judgement, use.name), []).append(use)
    owners = {use.name.rpartition(".")[0] for use in uses}
    findings = [
        Finding(
            name,
            judgement.verdict,
            judgement.grade,
            tuple(judged_uses),
            judgement.advice,
            porting.find(name),
        )
        for (judgement, name), judged_uses in uses_by_judgement.items()
        # A name that is used below an existing module is listed instead of the module.
        if judgement.verdict is not Verdict.RUNS or name not in owners
    ]
    return sorted(findings, key=lambda f: (f.verdict.value, f.name)), dismissed


_RUN = "python -m keras_tpu_estimator tf1"
_TITLES = {
    Verdict.MISSING: "Missing",
    Verdict.REFUSED: "Refused on devices",
    Verdict.ABSENT: "Missing libraries and names of Python 2",
    Verdict.DEPENDS: "Depends on values that the source does not show",
    Verdict.DIFFERS: "Runs, but not as in TensorFlow 1.15",
}
_GRADES = {Grade.NEEDED: "and needed", Grade.IN_BRANCH: "in a branch"}
_NOT_CHECKED = (
    "Not checked: values that the source does not show, such as the dtypes and "
    "shapes of the data."
)
# The number of places that are printed for each name. The JSON has all of them.
_PLACES = 5


def as_json(report: Report) -> str:
    """Returns the report as one JSON object, as `docs/porting.md` describes it."""
    return json.dumps(
        {
            "runs": report.runs,
            "files": [str(path) for path in report.files],
            "names": [_name_as_json(finding) for finding in report.findings],
            "not_followed": [_remark_as_json(remark) for remark in report.unfollowed],
            "not_python_3": [_remark_as_json(remark) for remark in report.unreadable],
        },
        indent=2,
    )


def as_text(report: Report, start: pathlib.Path) -> str:
    """Returns the report as tables.

    File names are relative to `start` or, outside of it, to the current folder.
    """
    folders = (start, pathlib.Path.cwd())

    def location(use: Use | Unfollowed) -> str:
        path = use.path
        above = next((folder for folder in folders if path.is_relative_to(folder)), "")
        return f"{path.relative_to(above) if above else path}:{use.line}"

    running = report.with_verdict(Verdict.RUNS)
    names = {
        finding.name
        for finding in report.findings
        if finding.verdict is not Verdict.ABSENT
    }
    lines = [f"{len(report.files)} files, {len(names)} names of TensorFlow."]
    for grade, what in _GRADES.items():
        for verdict, title in _TITLES.items():
            findings = report.with_verdict(verdict, grade)
            lines += _titled(f"{title}, {what}", _problems(findings, location))
    lines += _titled("Not Python 3", _remarks(report.unreadable, location))
    lines += _table(running)
    installations = dict.fromkeys(
        finding.advice for finding in running if finding.advice
    )
    lines += _titled("To be installed", installations)
    lines += _titled("Not followed", _remarks(report.unfollowed, location))
    lines += ["", _conclusion(report)]
    return "\n".join(lines)


def _conclusion(report: Report) -> str:
    if report.runs:
        return (
            f"No name or argument that was checked stops it{_unless(report)}: "
            f"{_RUN} SCRIPT\n{_NOT_CHECKED}"
        )
    count = len(report.unreadable) + len(report.needed)
    return (
        f"{count} places must change before {_RUN} can run it. For a port to "
        f"Keras, see {porting.PAGE}."
    )


def _unless(report: Report) -> str:
    """Returns a clause about names in branches that would stop the script, or ""."""
    count = sum(
        len(report.with_verdict(verdict, Grade.IN_BRANCH)) for verdict in STOPPING
    )
    if not count:
        return ""
    names = "the name" if count == 1 else f"one of the {count} names"
    return f", unless it reaches {names} listed above as in a branch"


def _titled(title: str, lines: Iterable[str]) -> list[str]:
    indented = [f"  {line}" for line in lines]
    return ["", title, *indented] if indented else []


def _problems(
    findings: Iterable[Finding], location: Callable[[Use], str]
) -> Iterator[str]:
    for finding in findings:
        shown = list(dict.fromkeys(map(location, finding.uses)))
        more = f" and {len(shown) - _PLACES} more" * (len(shown) > _PLACES)
        yield f"{finding.name}  {', '.join(shown[:_PLACES])}{more}"
        if finding.advice and not _repeats_counterpart(finding):
            yield f"    {finding.advice}"
        if finding.counterpart:
            yield f"    In a port to Keras: {_replacement(finding)}"


def _repeats_counterpart(finding: Finding) -> bool:
    """Returns whether the advice only refers to the counterpart, which is known."""
    return finding.counterpart is not None and porting.PAGE in finding.advice


def _remarks(
    remarks: Iterable[Unfollowed], location: Callable[[Unfollowed], str]
) -> Iterator[str]:
    for remark in remarks:
        yield f"{location(remark)}  {remark.what}"


def _table(findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return []
    title = "Runs as it is"
    width = max(len(title), *(len(finding.name) + 2 for finding in findings))
    lines = ["", f"{title:<{width}}  uses  in a port to Keras"]
    for finding in findings:
        name, count = f"  {finding.name}", len(finding.uses)
        line = f"{name:<{width}}  {count:>4}  {_replacement(finding)}"
        lines.append(line.rstrip())
    return lines


def _replacement(finding: Finding) -> str:
    return finding.counterpart.now if finding.counterpart else ""


def _name_as_json(finding: Finding) -> dict[str, Any]:
    counterpart = finding.counterpart
    return {
        "name": finding.name,
        "verdict": finding.verdict.value,
        "grade": finding.grade.name.lower(),
        "advice": finding.advice,
        "counterpart": counterpart.now if counterpart else None,
        "note": counterpart.note if counterpart else None,
        "page": counterpart.page if counterpart else None,
        "places": [{"file": str(use.path), "line": use.line} for use in finding.uses],
    }


def _remark_as_json(remark: Unfollowed) -> dict[str, Any]:
    return {
        "file": str(remark.path),
        "line": remark.line,
        "what": remark.what,
    }


def main(name: str, arguments: Sequence[str]) -> int:
    """Runs the command `check`.

    It returns 0, 1 if something stops the script, or 2 if there is no script.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m keras_tpu_estimator {name}",
        description="Reads a TensorFlow 1 script without running it, and reports "
        "the names that run, those that do not, and their Keras counterparts.",
    )
    parser.add_argument(
        "path",
        type=pathlib.Path,
        metavar="PATH",
        help="a folder, or a file, which is read together with the modules that it "
        "imports from its own folder, the current one and PYTHONPATH",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, with all places"
    )
    options = parser.parse_args(arguments)
    # The checker imports TensorFlow to look up names. This hides its log lines.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        report = check(options.path)
    except ValueError as error:
        parser.error(str(error))
    path = options.path
    start = path if path.is_dir() else path.parent
    text = as_json(report) if options.json else as_text(report, start)
    sys.stdout.write(text + "\n")
    return 0 if report.runs else 1
