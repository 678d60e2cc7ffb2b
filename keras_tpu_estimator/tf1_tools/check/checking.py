"""Reading a program, and what is said about it."""

import ast
import dataclasses
import enum
import functools
import pathlib
from collections.abc import Iterable

from keras_tpu_estimator.ground.base.sources import read_program
from keras_tpu_estimator.tf1 import shims
from keras_tpu_estimator.tf1.names import porting
from keras_tpu_estimator.tf1.names.catalogue import catalogue
from keras_tpu_estimator.tf1_tools.check.reached import Grade
from keras_tpu_estimator.tf1_tools.check.running_code import RunningCode
from keras_tpu_estimator.tf1_tools.check.scopes import Scope
from keras_tpu_estimator.tf1_tools.check.scopes import scopes_of
from keras_tpu_estimator.tf1_tools.check.uses import Unfollowed
from keras_tpu_estimator.tf1_tools.check.uses import Use
from keras_tpu_estimator.tf1_tools.check.uses import uses_in

_REFS = "Variables are resources. Leave `use_resource` out."


class Verdict(enum.Enum):
    """What becomes of a name when the program is run as it is.

    Attributes:
        RUNS: It does what it did.
        MISSING: It is neither TensorFlow's nor supplied.
        REFUSED: It is there, but not where the program uses it.
    """

    RUNS = "runs"
    MISSING = "missing"
    REFUSED = "refused"


@dataclasses.dataclass(frozen=True)
class Finding:
    """A name of TensorFlow, and all places where one thing is said of it.

    Attributes:
        name: Such as "tf.layers.dense".
        verdict: What becomes of it.
        grade: Whether the program comes to one of the places.
        places: Where it is used.
        advice: What to do, if it does not run, or not without what is to be
            installed; else "".
        counterpart: What replaces it in a port to Keras, if that is known.
    """

    name: str
    verdict: Verdict
    grade: Grade
    places: tuple[Use, ...]
    advice: str
    counterpart: porting.Counterpart | None


@dataclasses.dataclass(frozen=True)
class Report:
    """What is said about a program.

    Attributes:
        files: Its files.
        findings: By verdict and name.
        unfollowed: What may use TensorFlow, and could not be followed.
        unreadable: What is no Python 3.
    """

    files: tuple[pathlib.Path, ...]
    findings: tuple[Finding, ...]
    unfollowed: tuple[Unfollowed, ...]
    unreadable: tuple[Unfollowed, ...]

    @property
    def runs(self) -> bool:
        """Whether nothing that is needed stands against running it."""
        return not self.unreadable and not self.needed

    @property
    def needed(self) -> list[Finding]:
        """What does not run, and is needed."""
        return [
            each
            for each in self.findings
            if each.verdict is not Verdict.RUNS and each.grade is Grade.NEEDED
        ]

    def with_verdict(
        self, verdict: Verdict, grade: Grade | None = None
    ) -> list[Finding]:
        """The findings with one verdict, and one grade if there is one."""
        return [
            each
            for each in self.findings
            if each.verdict is verdict and grade in (None, each.grade)
        ]


def check(path: pathlib.Path) -> Report:
    """Reads a program, without running it, and looks up what it uses.

    Args:
        path: A file, with which those are read that it imports from its
            folder, or a folder.

    Returns:
        A `Report`.

    Raises:
        ValueError: There is no Python file.
    """
    sources = read_program(path)
    program = scopes_of(sources)
    uses: list[Use] = []
    unfollowed: list[Unfollowed] = []
    for module in program.values():
        for each in uses_in(module):
            if isinstance(each, Use):
                uses.append(each)
            else:
                unfollowed.append(each)
    starts = [each for each in program.values() if each.source.path == path]
    code = RunningCode.of(program, starts[0] if starts else None)
    judged, dismissed = _judged(uses, program, code)
    return Report(
        tuple(source.path for source in sources),
        tuple(judged),
        tuple([*unfollowed, *dismissed]),
        tuple(
            Unfollowed(source.path, source.line, source.error)
            for source in sources
            if source.error
        ),
    )


def _judged(
    uses: Iterable[Use], program: dict[str, Scope], code: RunningCode
) -> tuple[list[Finding], list[Unfollowed]]:
    """Findings, and uses that the program may do without."""
    places: dict[tuple[Verdict, Grade, str, str], list[Use]] = {}
    dismissed: list[Unfollowed] = []
    calls = {
        node.func: node
        for module in program.values()
        for node in ast.walk(module.node)
        if isinstance(node, ast.Call)
    }
    for use in uses:
        verdict, advice = _verdict(use, use.node in code.in_steps, calls)
        where = code.in_steps if verdict is Verdict.REFUSED else code.anywhere
        grade = where.get(use.node, Grade.IN_BRANCH)
        if verdict is Verdict.RUNS:
            grade = Grade.NEEDED  # One row is enough.
        if verdict is Verdict.MISSING and use.is_guarded:
            what = f"{use.name}, which is missing, where it may be"
            dismissed.append(Unfollowed(use.path, use.line, what))
        else:
            key = verdict, grade, use.name, advice
            places.setdefault(key, []).append(use)
    owners = {use.name.rpartition(".")[0] for use in uses}
    findings = [
        Finding(name, verdict, grade, tuple(found), advice, porting.find(name))
        for (verdict, grade, name, advice), found in places.items()
        # Of a module that is there, what is used of it says enough.
        if verdict is not Verdict.RUNS or name not in owners
    ]
    return sorted(findings, key=lambda f: (f.verdict.value, f.name)), dismissed


def _verdict(
    use: Use, is_in_step: bool, calls: dict[ast.expr, ast.Call]
) -> tuple[Verdict, str]:
    found = shims.lookup(use.name)
    if found.status is shims.Status.MISSING:
        return Verdict.MISSING, _of_version_2(use.name) or found.advice
    if is_in_step:
        advice = catalogue().refusal(use.name.removeprefix("tf."))
        if use.node in calls and _makes_refs(use.name, calls[use.node]):
            advice = _REFS
        if advice:
            return Verdict.REFUSED, advice
    return Verdict.RUNS, found.advice


def _makes_refs(name: str, call: ast.Call) -> bool:
    """Whether a call makes variables that are no resources."""
    if name not in ("tf.get_variable", "tf.Variable", "tf.variable_scope"):
        return False
    return any(
        keyword.arg == "use_resource"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is False
        for keyword in call.keywords
    )


def _of_version_2(name: str) -> str:
    """What to do about a name that came with TensorFlow 2; else ""."""
    import tensorflow

    try:
        functools.reduce(getattr, name.split(".")[1:], tensorflow)
    except AttributeError:
        return ""
    shown = name.replace("tf.", "tf.compat.v2.", 1)
    return f"It came with TensorFlow 2: write {shown}."
