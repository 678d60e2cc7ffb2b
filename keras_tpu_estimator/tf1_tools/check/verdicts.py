"""The verdict about one use of a TensorFlow name."""

import ast
import dataclasses
import enum
import functools
from collections.abc import Iterable, Mapping

from keras_tpu_estimator.tf1 import shims
from keras_tpu_estimator.tf1.names.calls import CallRule, Effect, Where
from keras_tpu_estimator.tf1.names.catalogue import catalogue
from keras_tpu_estimator.tf1_tools.check.arguments import Answer, answer
from keras_tpu_estimator.tf1_tools.check.reached import Grade, RunningCode
from keras_tpu_estimator.tf1_tools.check.scopes import Scope
from keras_tpu_estimator.tf1_tools.check.uses import Use, library_advice


class Verdict(enum.Enum):
    """The outcome of a name when the script runs unchanged.

    Attributes:
        RUNS: It does the same as in TensorFlow 1.15.
        MISSING: Neither TensorFlow nor this package has it.
        REFUSED: It exists, but not at this place or with these arguments.
        DEPENDS: It stops the script for some values, which the source does not show.
        DIFFERS: It runs, but its result differs from that of TensorFlow 1.15.
        ABSENT: It is a library that is not installed.
    """

    RUNS = "runs"
    MISSING = "missing"
    REFUSED = "refused"
    DEPENDS = "depends"
    DIFFERS = "differs"
    ABSENT = "absent"


_VERDICTS = {
    Effect.STOPS: Verdict.REFUSED,
    Effect.DEPENDS: Verdict.DEPENDS,
    Effect.DIFFERS: Verdict.DIFFERS,
}


@dataclasses.dataclass(frozen=True)
class Judgement:
    """The verdict about a use.

    Attributes:
        verdict: The verdict.
        grade: Whether the script needs the code of the use.
        advice: The change or installation that the script needs, or "".
    """

    verdict: Verdict
    grade: Grade
    advice: str


@dataclasses.dataclass(frozen=True)
class Judge:
    """The facts about a script that decide its verdicts.

    Attributes:
        code: The code that runs.
        calls: The calls, by the called expression.
        columns: The grade of the steps that read feature columns, or `None`.
    """

    code: RunningCode
    calls: Mapping[ast.AST, ast.Call]
    columns: Grade | None

    @classmethod
    def of(
        cls,
        uses: Iterable[Use],
        program: Mapping[str, Scope],
        code: RunningCode,
    ) -> "Judge":
        """Collects the facts about a script."""
        calls: dict[ast.AST, ast.Call] = {
            node.func: node
            for module in program.values()
            for node in ast.walk(module.node)
            if isinstance(node, ast.Call)
        }
        readers = [
            code.in_steps[use.node]
            for use in uses
            if _path(use) in catalogue().column_readers and use.node in code.in_steps
        ]
        return cls(code, calls, max(readers, default=None))

    def judge(self, use: Use) -> Judgement:
        """Judges a use by its name, its place and its arguments."""
        grade = self.code.anywhere.get(use.node, Grade.IN_BRANCH)
        if not f"{use.name}.".startswith("tf."):
            return Judgement(Verdict.ABSENT, grade, library_advice(use.name))
        found = shims.lookup(use.name)
        if found.status is shims.Status.MISSING:
            advice = _of_version_2(use.name) or found.advice
            return Judgement(Verdict.MISSING, grade, advice)
        in_step = self.code.in_steps.get(use.node)
        if in_step is not None:
            advice = catalogue().refusal(_path(use))
            if advice:
                return Judgement(Verdict.REFUSED, in_step, advice)
        judgements = [
            judged
            for rule in catalogue().calls_of(_path(use))
            if (judged := self._by_rule(rule, use, grade))
        ]
        for verdict in (Verdict.REFUSED, Verdict.DEPENDS, Verdict.DIFFERS):
            for each in judgements:
                if each.verdict is verdict:
                    return each
        # One row in the report is enough for a name that runs.
        return Judgement(Verdict.RUNS, Grade.NEEDED, found.advice)

    def _by_rule(self, rule: CallRule, use: Use, grade: Grade) -> Judgement | None:
        """Returns the verdict of one rule about a call, or `None` if it passes."""
        call = self.calls.get(use.node)
        reached = self._reached(rule.where, use, grade)
        if call is None or reached is None:
            return None
        known = answer(rule, call, use.scope)
        if known is Answer.NO:
            return None
        verdict = _VERDICTS[rule.effect]
        if verdict is Verdict.REFUSED and known is Answer.UNKNOWN:
            verdict = Verdict.DEPENDS
        return Judgement(verdict, reached, rule.advice)

    def _reached(self, where: Where, use: Use, grade: Grade) -> Grade | None:
        """Returns the grade of a use in the code that a rule is about, or `None`."""
        in_step = self.code.in_steps.get(use.node)
        if where is Where.STEPS:
            return in_step
        if where is Where.BRANCHES:
            return self.code.in_branches.get(use.node)
        if where is Where.HOST_CALLS:
            return self.code.in_host_calls.get(use.node)
        if where is Where.COLUMNS:
            return None if self.columns is None else min(self.columns, grade)
        return grade if in_step is None else None


def _path(use: Use) -> str:
    return use.name.removeprefix("tf.")


def _of_version_2(name: str) -> str:
    """Returns advice for a name that TensorFlow 2 introduced, or ""."""
    import tensorflow

    try:
        functools.reduce(getattr, name.split(".")[1:], tensorflow)
    except AttributeError:
        return ""
    shown = name.replace("tf.", "tf.compat.v2.", 1)
    return f"It came with TensorFlow 2: write {shown}."
