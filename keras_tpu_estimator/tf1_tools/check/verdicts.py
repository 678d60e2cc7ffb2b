"""The verdict about one use of a TensorFlow name, and about its arguments."""

import ast
import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping

from keras_tpu_estimator.tf1 import shims
from keras_tpu_estimator.tf1.names.calls import CallRule, Effect, Value, Where
from keras_tpu_estimator.tf1.names.catalogue import catalogue
from keras_tpu_estimator.tf1_tools.check import loops
from keras_tpu_estimator.tf1_tools.check.reached import Grade, RunningCode
from keras_tpu_estimator.tf1_tools.check.scopes import Scope, canonical
from keras_tpu_estimator.tf1_tools.check.uses import Use, library_advice

_NUMERIC = ("bool", "float", "int", "range")
_WIDE = ("float64", "int64", "uint64", "double")


class Answer(enum.IntEnum):
    """The answer to a question about a value that is read from source code."""

    NO = 0
    UNKNOWN = 1
    YES = 2


def answer(rule: CallRule, call: ast.Call, scope: Scope) -> Answer:
    """Returns whether a call passes the argument that a rule checks."""
    if rule.value is Value.ANY:
        return Answer.YES
    argument = _argument(call, rule.argument, rule.position)
    if rule.value is Value.UNBOUNDED:
        return _is_unbounded(call, scope) if argument is None else Answer.NO
    if rule.dtype >= 0:
        dtype = _argument(call, "dtype", rule.dtype)
        decided = dtype and _is_string_dtype(dtype, scope)
        if decided in (Answer.YES, Answer.NO):
            return decided
    if argument is None:
        return Answer.NO
    result = _QUESTIONS[rule.value](argument, scope)
    if result is Answer.UNKNOWN and rule.value is not Value.PASSED:
        # Most tensors of a step are numeric, and the source rarely shows their dtype.
        return Answer.NO if rule.where is Where.STEPS else result
    return result


def _argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if 0 <= position < len(call.args):
        return call.args[position]
    return None


def _is_unbounded(call: ast.Call, scope: Scope) -> Answer:
    """Returns whether a gradient of a loop needs a bound that the source lacks."""
    is_starred = any(isinstance(argument, ast.Starred) for argument in call.args)
    if is_starred or any(keyword.arg is None for keyword in call.keywords):
        return Answer.NO  # A bound may be among the hidden arguments.
    names = ("cond", "body", "loop_vars")
    first, second, third = (_argument(call, name, n) for n, name in enumerate(names))
    return _answer(not loops.has_bound(scope, first, second, third))


def _has_strings(
    node: ast.expr, scope: Scope, within: frozenset[ast.expr] = frozenset()
) -> Answer:
    """Returns whether a value is a string or the string dtype, or contains one."""
    node, scope = scope.value(node)
    if node in within:
        return Answer.UNKNOWN  # For example, `names = names + ["a"]` in a class.
    if isinstance(node, ast.Constant):
        return _answer(isinstance(node.value, str | bytes))
    if isinstance(node, ast.JoinedStr):
        return Answer.YES
    if isinstance(node, ast.Name | ast.Attribute):
        return _of_dtype(node, scope)
    if isinstance(node, ast.Call) and _is_of_numbers(node, scope):
        return Answer.NO
    parts = _parts(node)
    if parts is None:
        return Answer.UNKNOWN
    within |= {node}
    answers = (_has_strings(part, scope, within) for part in parts)
    return max(answers, default=Answer.NO)


def _parts(node: ast.expr) -> list[ast.expr] | None:
    """Returns the elements of a value if they are known."""
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return node.elts
    if isinstance(node, ast.UnaryOp):
        return [node.operand]
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]  # For example, `["a"] * 4`.
    if isinstance(node, ast.Call) and len(node.args) == 1:
        is_copy = ast.unparse(node.func) in ("list", "tuple", "sorted")
        return node.args if is_copy else None
    return None


def _is_of_numbers(node: ast.Call, scope: Scope) -> bool:
    """Returns whether a call returns numbers or a feature column."""
    meaning = scope.meaning(node.func)
    called = meaning if isinstance(meaning, str) else ast.unparse(node.func)
    is_range = called == "range" or called.endswith(".arange")
    return is_range or "_column" in called


def _is_string_dtype(node: ast.expr, scope: Scope) -> Answer:
    node, scope = scope.value(node)
    if isinstance(node, ast.Constant):
        return _answer(node.value in ("str", "string"))
    return _has_strings(node, scope)


def _is_wide(node: ast.expr, scope: Scope) -> Answer:
    """Returns whether a value is a 64-bit dtype."""
    node, scope = scope.value(node)
    if isinstance(node, ast.Constant):
        return _answer(str(node.value) in _WIDE)
    if isinstance(node, ast.Name | ast.Attribute):
        meaning = scope.meaning(node)
        if isinstance(meaning, str):
            return _answer(meaning.rpartition(".")[2] in _WIDE)
    return Answer.UNKNOWN


def _of_dtype(node: ast.Name | ast.Attribute, scope: Scope) -> Answer:
    """Returns whether a name means the string dtype."""
    meaning = scope.meaning(node)
    if isinstance(meaning, str):
        name = canonical(meaning)
        if name.startswith(("tf.", "numpy.")):
            return _answer(name.endswith((".string", ".str_", ".object_")))
    if isinstance(node, ast.Name) and node.id == "str":
        return Answer.YES
    if isinstance(node, ast.Name) and node.id in _NUMERIC:
        return Answer.NO
    return Answer.UNKNOWN


def _is_not_zero(node: ast.expr, scope: Scope) -> Answer:
    node, scope = scope.value(node)
    if isinstance(node, ast.Constant):
        return _answer(bool(node.value))
    return Answer.UNKNOWN


def _is_passed(node: ast.expr, scope: Scope) -> Answer:
    node, scope = scope.value(node)
    if isinstance(node, ast.Constant):
        return _answer(node.value is not None)
    # Most parameters default to `None`, and a call does not show the default.
    is_shown = isinstance(node, ast.Call | ast.List | ast.Tuple | ast.Dict)
    return Answer.YES if is_shown else Answer.UNKNOWN


def _is_false(node: ast.expr, scope: Scope) -> Answer:
    node, scope = scope.value(node)
    return _answer(isinstance(node, ast.Constant) and node.value is False)


def _answer(is_so: bool) -> Answer:
    return Answer.YES if is_so else Answer.NO


_QUESTIONS: dict[Value, Callable[[ast.expr, Scope], Answer]] = {
    Value.STRINGS: _has_strings,
    Value.STRING_DTYPE: _is_string_dtype,
    Value.NOT_ZERO: _is_not_zero,
    Value.FALSE: _is_false,
    Value.PASSED: _is_passed,
    Value.WIDE_DTYPE: _is_wide,
}


class Verdict(enum.Enum):
    """The outcome of a name when the script runs unchanged.

    Attributes:
        RUNS: It does the same as in TensorFlow 1.15.
        MISSING: Neither TensorFlow nor this package has it.
        REFUSED: It exists, but not at this place or with these arguments.
        DEPENDS: It stops the script for some values, which the source does not show.
        DIFFERS: It runs, but its result differs from that of TensorFlow 1.15.
        ABSENT: It is a library that is not installed, or a name of Python 2.
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
    """The verdict about a use, and the change or installation that it needs, or ""."""

    verdict: Verdict
    grade: Grade
    advice: str


@dataclasses.dataclass(frozen=True)
class Judge:
    """The facts about a script that decide its verdicts.

    Attributes:
        calls: The calls, by the called expression.
        columns: The grade of the steps that read feature columns, or `None`.
    """

    code: RunningCode
    calls: Mapping[ast.AST, ast.Call]
    columns: Grade | None

    @classmethod
    def from_program(
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
            return Judgement(Verdict.ABSENT, grade, use.advice or library_advice(use))
        resolved = shims.lookup(use.name)
        if resolved.status is shims.Status.MISSING:
            advice = _of_version_2(use.name) or resolved.advice
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
            for judgement in judgements:
                if judgement.verdict is verdict:
                    return judgement
        # One row in the report is enough for a name that runs.
        return Judgement(Verdict.RUNS, Grade.NEEDED, resolved.advice)

    def _by_rule(self, rule: CallRule, use: Use, grade: Grade) -> Judgement | None:
        """Returns the verdict of one rule about a call, or `None` if it passes."""
        call = self.calls.get(use.node)
        reached = self._reached(rule.where, use, grade)
        if call is None or reached is None:
            return None
        result = answer(rule, call, use.scope)
        if result is Answer.NO:
            return None
        verdict = _VERDICTS[rule.effect]
        if verdict is Verdict.REFUSED and result is Answer.UNKNOWN:
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
    shown = name.replace("tf.", "tf.compat.v2.", 1)
    if shims.lookup(shown).status is shims.Status.MISSING:
        return ""
    return f"It came with TensorFlow 2: write {shown}."
