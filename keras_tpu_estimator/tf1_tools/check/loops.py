"""Bounds on the rounds of a `tf.while_loop` that its source shows.

The bounds are those that `keras_tpu_estimator.tf1.graph.loop_bounds` finds in graphs.
"""

import ast
import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from keras_tpu_estimator.tf1_tools.check.scopes import Found, Scope, canonical

_COMPARISONS: dict[str, type[ast.cmpop]] = {
    "less": ast.Lt,
    "less_equal": ast.LtE,
    "greater": ast.Gt,
    "greater_equal": ast.GtE,
    "not_equal": ast.NotEq,
}
_SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
    ast.NotEq: ast.NotEq,
}
_FLAGS = ("tf.flags.FLAGS.", "tf.app.flags.FLAGS.", "absl.flags.FLAGS.")


class _Function(NamedTuple):
    """A function of a loop that returns in one place, with its inner scope."""

    scope: Scope
    parameters: list[str]
    returned: Sequence[ast.expr]


def has_bound(
    scope: Scope,
    condition: ast.expr | None,
    body: ast.expr | None,
    variables: ast.expr | None,
) -> bool:
    """Returns whether a loop's first three arguments show a bound on its rounds."""
    functions = [_function(function, scope) for function in (condition, body)]
    if None in functions or variables is None:
        return False
    first, second = (function for function in functions if function is not None)
    starts, outer = scope.value(variables)
    loop = _Loop(first, second, _elements(starts), outer)
    return any(map(loop.is_bounded, first.returned))


@dataclasses.dataclass(frozen=True)
class _Loop:
    """A loop. It begins with the tensors `starts`, which belong to `scope`."""

    condition: _Function
    body: _Function
    starts: Sequence[ast.expr]
    scope: Scope

    def is_bounded(self, predicate: ast.expr) -> bool:
        """Returns whether a predicate of the condition bounds the rounds."""
        scope = self.condition.scope
        name, arguments = _call(predicate, scope)
        if name == "logical_and":
            return any(map(self.is_bounded, arguments))
        if isinstance(predicate, ast.Compare) and len(predicate.ops) == 1:
            kind = type(predicate.ops[0])
            arguments = [predicate.left, predicate.comparators[0]]
        elif name in _COMPARISONS and len(arguments) == 2:
            kind = _COMPARISONS[name]
        else:
            return False
        if kind not in _SWAPPED:
            return False
        first, second = arguments
        return self._ends(first, kind, second) or self._ends(
            second, _SWAPPED[kind], first
        )

    def _ends(self, counter: ast.expr, kind: type[ast.cmpop], end: ast.expr) -> bool:
        """Returns whether a parameter counts up or down to an end."""
        position = _parameter(self.condition, counter)
        if position is None or position >= min(
            len(self.starts), len(self.body.returned), len(self.body.parameters)
        ):
            return False
        step = _step(self.body, position)
        if not step or not _is_integer(self.starts[position], self.scope):
            return False
        if kind is ast.NotEq:
            begin, last = self.starts[position], end
            return _divides(step, _number(begin, self.scope), _number(last, self.scope))
        is_up = kind in (ast.Lt, ast.LtE)
        return is_up == (step > 0) and self._is_fixed(end, is_up)

    def _is_fixed(self, end: ast.expr, is_up: bool) -> bool:
        """Returns whether an end has a value that no round passes."""
        scope = self.condition.scope
        name, arguments = _call(end, scope)
        if name == ("minimum" if is_up else "maximum"):
            return any(self._is_fixed(argument, is_up) for argument in arguments)
        position = _parameter(self.condition, end)
        if position is None:
            return _number(end, scope) is not None or _is_integer(end, scope)
        is_repeated = position < min(len(self.starts), len(self.body.returned))
        if (
            not is_repeated
            or _parameter(self.body, self.body.returned[position]) != position
        ):
            return False
        return _is_integer(self.starts[position], self.scope)


def _function(node: ast.expr | None, scope: Scope) -> _Function | None:
    """Returns a function that returns in one place, or `None`."""
    if node is None:
        return None
    node, scope = scope.value(node)
    meaning = scope.meaning(node)
    if isinstance(node, ast.Lambda):
        function: ast.Lambda | ast.FunctionDef = node
        returns: list[ast.expr | None] = [node.body]
    elif isinstance(meaning, Found) and isinstance(meaning.node, ast.FunctionDef):
        function, scope = meaning.node, meaning.scope
        returns = [
            statement.value
            for owner, statement in scope.children[function].walk()
            if isinstance(statement, ast.Return) and owner.node is function
        ]
    else:
        return None
    if len(returns) != 1 or returns[0] is None or function not in scope.children:
        return None
    inner = scope.children[function]
    names = [
        argument.arg for argument in (*function.args.posonlyargs, *function.args.args)
    ]
    value, _ = inner.value(returns[0])
    return _Function(inner, names, _elements(value))


def _elements(node: ast.expr) -> Sequence[ast.expr]:
    """Returns the elements of a list, or a single value."""
    if not isinstance(node, ast.List | ast.Tuple):
        return [node]
    return [*_until_star(node.elts)]


def _until_star(nodes: Sequence[ast.expr]) -> Iterator[ast.expr]:
    for node in nodes:
        if isinstance(node, ast.Starred):
            return
        yield node


def _parameter(function: _Function, node: ast.expr) -> int | None:
    """Returns which parameter a name is that the function does not assign."""
    if not isinstance(node, ast.Name) or node.id not in function.parameters:
        return None
    is_assigned = any(_assigns(child, node.id) for _, child in function.scope.walk())
    return None if is_assigned else function.parameters.index(node.id)


def _assigns(node: ast.AST, name: str) -> bool:
    if not isinstance(node, ast.Name):
        return False
    return isinstance(node.ctx, ast.Store) and node.id == name


def _step(body: _Function, position: int) -> float | None:
    """Returns what a round adds to a parameter, if it is a number."""
    result, scope = body.scope.value(body.returned[position])
    name, arguments = _call(result, scope)
    if isinstance(result, ast.BinOp) and isinstance(result.op, ast.Add | ast.Sub):
        arguments = [result.left, result.right]
        sign = 1 if isinstance(result.op, ast.Add) else -1
    elif name in ("add", "subtract") and len(arguments) == 2:
        sign = 1 if name == "add" else -1
    else:
        return None
    first, second = arguments
    if sign == 1 and _parameter(body, first) is None:
        first, second = second, first
    step = _number(second, scope)
    is_same = _parameter(body, first) == position
    return sign * step if is_same and step is not None else None


def _divides(step: float, start: float | None, end: float | None) -> bool:
    """Returns whether equal steps meet an end."""
    if start is None or end is None:
        return False
    rounds = (end - start) / step
    return rounds >= 0 and rounds % 1 == 0


def _number(node: ast.expr, scope: Scope) -> float | None:
    """Returns the number that an expression is, if the source shows it."""
    node, scope = scope.value(node)
    name, arguments = _call(node, scope)
    if name == "constant" and arguments:
        return _number(arguments[0], scope)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = _number(node.operand, scope)
        return None if operand is None else -operand
    value = node.value if isinstance(node, ast.Constant) else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value


def _is_integer(node: ast.expr, scope: Scope) -> bool:
    """Returns whether an expression is an integer that is known in the graph."""
    value = _number(node, scope)
    if value is not None:
        return isinstance(value, int)
    node, scope = scope.value(node)
    if isinstance(node, ast.BinOp):
        may_be_integer = not isinstance(node.op, ast.Div)
        parts = (node.left, node.right)
        return may_be_integer and all(_is_integer(part, scope) for part in parts)
    name, _ = _call(node, scope)
    if name in ("len", "int"):
        return True
    if isinstance(node, ast.Subscript):
        return _is_size(node, scope) or ast.unparse(node.value) == "params"
    meaning = scope.meaning(node)
    return isinstance(meaning, str) and canonical(meaning).startswith(_FLAGS)


def _is_size(node: ast.Subscript, scope: Scope) -> bool:
    """Returns whether an expression is one of the sizes of a tensor."""
    name, _ = _call(node.value, scope)
    is_attribute = isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    return is_attribute or name in ("shape", "get_shape", "as_list")


def _call(node: ast.expr, scope: Scope) -> tuple[str, list[ast.expr]]:
    """Returns the last name of what a call calls, and its arguments."""
    if not isinstance(node, ast.Call):
        return "", []
    name = ast.unparse(node.func).rpartition(".")[2]
    meaning = scope.meaning(node.func)
    if isinstance(meaning, str):
        name = canonical(meaning).rpartition(".")[2]
    return name, [*_until_star(node.args)]
