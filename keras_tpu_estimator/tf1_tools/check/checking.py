"""Reading a program, and what is said about it."""

import ast
import dataclasses
import enum
import functools
import pathlib
from collections.abc import Iterable
from collections.abc import Iterator

from keras_tpu_estimator.ground.base.sources import read_program
from keras_tpu_estimator.tf1 import shims
from keras_tpu_estimator.tf1_tools.check import limits
from keras_tpu_estimator.tf1_tools.check.reached import nodes_reached
from keras_tpu_estimator.tf1_tools.check.scopes import Scope
from keras_tpu_estimator.tf1_tools.check.scopes import scopes_of
from keras_tpu_estimator.tf1_tools.check.uses import Unfollowed
from keras_tpu_estimator.tf1_tools.check.uses import Use
from keras_tpu_estimator.tf1_tools.check.uses import uses_in
from keras_tpu_estimator.tf1_tools.porting import table


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
        places: Where it is used.
        advice: What to do, if it does not run, or not without what is to be
            installed; else "".
        counterpart: What replaces it in a port to Keras, if that is known.
    """

    name: str
    verdict: Verdict
    places: tuple[Use, ...]
    advice: str
    counterpart: table.Counterpart | None


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
        """Whether nothing stands against running it as it is."""
        return not self.unreadable and all(
            finding.verdict is Verdict.RUNS for finding in self.findings
        )

    def with_verdict(self, verdict: Verdict) -> list[Finding]:
        """The findings with one verdict."""
        return [each for each in self.findings if each.verdict is verdict]


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
    judged, dismissed = _judged(uses, program)
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
    uses: Iterable[Use], program: dict[str, Scope]
) -> tuple[list[Finding], list[Unfollowed]]:
    """Findings, and uses that the program may do without."""
    places: dict[tuple[Verdict, str, str], list[Use]] = {}
    dismissed: list[Unfollowed] = []
    in_parts = {part: nodes_reached(program, part) for part in limits.LIMITS}
    calls = {
        node.func: node
        for module in program.values()
        for node in ast.walk(module.node)
        if isinstance(node, ast.Call)
    }
    for use in uses:
        parts = [part for part, nodes in in_parts.items() if use.node in nodes]
        verdict, advice = _verdict(use, parts, calls)
        if verdict is Verdict.MISSING and use.is_guarded:
            what = f"{use.name}, which is missing, where it may be"
            dismissed.append(Unfollowed(use.path, use.line, what))
        else:
            places.setdefault((verdict, use.name, advice), []).append(use)
    owners = {use.name.rpartition(".")[0] for use in uses}
    findings = [
        Finding(name, verdict, tuple(found), advice, table.find(name))
        for (verdict, name, advice), found in places.items()
        # Of a module that is there, what is used of it says enough.
        if verdict is not Verdict.RUNS or name not in owners
    ]
    return sorted(findings, key=lambda f: (f.verdict.value, f.name)), dismissed


def _verdict(
    use: Use, parts: Iterable[str], calls: dict[ast.expr, ast.Call]
) -> tuple[Verdict, str]:
    found = shims.lookup(use.name)
    if found.status is shims.Status.MISSING:
        return Verdict.MISSING, _of_version_2(use.name) or found.advice
    for advice in _limits(use, parts, calls):
        if advice:
            return Verdict.REFUSED, advice
    return Verdict.RUNS, found.advice


def _limits(
    use: Use, parts: Iterable[str], calls: dict[ast.expr, ast.Call]
) -> Iterator[str]:
    for part in parts:
        yield limits.advice_on(use.name, part)
        if part == "model_fn" and use.node in calls:
            yield limits.advice_on_call(use.name, calls[use.node])


def _of_version_2(name: str) -> str:
    """What to do about a name that came with TensorFlow 2; else ""."""
    import tensorflow

    try:
        functools.reduce(getattr, name.split(".")[1:], tensorflow)
    except AttributeError:
        return ""
    shown = name.replace("tf.", "tf.compat.v2.", 1)
    return f"It came with TensorFlow 2: write {shown}."
