"""`tf.cond` on a value that Python knows, such as a size or the mode.

`keras.ops.cond` computes both branches while it is traced, and needs results of equal
shapes. A choice of Python's has neither limit, like `tf.cond`, which runs one branch.
"""

import ast
from collections.abc import Sequence

import libcst as cst

from keras_tpu_estimator.tf1_tools.port.kinds import Kind
from keras_tpu_estimator.tf1_tools.port.program import Site, entry_of
from keras_tpu_estimator.tf1_tools.port.rules import Rule, expand
from keras_tpu_estimator.tf1_tools.port.values import embedded, source_of

_COMPARISONS = {
    "equal": cst.Equal,
    "greater": cst.GreaterThan,
    "greater_equal": cst.GreaterThanEqual,
    "less": cst.LessThan,
    "less_equal": cst.LessThanEqual,
    "not_equal": cst.NotEqual,
}
_BOOLEANS = {"logical_and": cst.And, "logical_or": cst.Or}
# Functions that make a tensor of a value without changing it.
_TENSORS = ("cast", "constant", "convert_to_tensor")
_KNOWN = (Kind.PLAIN, Kind.SIZE)


def cond(site: Site, arguments: Sequence[cst.Arg]) -> cst.BaseExpression:
    """Returns a choice of Python's, or one on the device."""
    entry = entry_of("tf.cond")
    rule = Rule.from_source(entry.rule if entry else "")
    predicate = site.argument(0, "pred")
    bound = rule.bound(arguments)
    branches = [bound.get(name) for name in ("true_fn", "false_fn")]
    if predicate is None or not _is_known(site, predicate) or None in branches:
        return expand(rule, arguments)
    first, second = (_result(b.value) for b in branches if b is not None)
    test = _in_python(bound["pred"].value)
    return cst.IfExp(
        test=test,
        body=first,
        orelse=second,
        lpar=[cst.LeftParen()],
        rpar=[cst.RightParen()],
    )


def _is_known(site: Site, node: ast.expr) -> bool:
    """Returns whether Python knows a value while a step is traced."""
    call = Site(node, site.scope, site.program)
    if not isinstance(node, ast.Call):
        return call.kind in _KNOWN
    last = call.value.name.removeprefix("tf.").removeprefix("math.")
    if last in _TENSORS:
        return bool(node.args) and _is_known(call, node.args[0])
    if last in (*_COMPARISONS, *_BOOLEANS, "logical_not"):
        return all(_is_known(call, argument) for argument in node.args)
    return call.kind in _KNOWN


def _in_python(node: cst.BaseExpression) -> cst.BaseExpression:
    """Returns a predicate with operators in place of the functions of `keras.ops`."""
    if not isinstance(node, cst.Call):
        return node
    prefix, _, name = source_of(node.func).rpartition(".")
    values = [embedded(_in_python(argument.value)) for argument in node.args]
    if prefix != "keras.ops" or not values:
        return node
    if name in _TENSORS:
        return values[0]
    if name == "logical_not":
        return cst.UnaryOperation(cst.Not(), values[0])
    if name in _BOOLEANS and len(values) == 2:
        return cst.BooleanOperation(values[0], _BOOLEANS[name](), values[1])
    if name in _COMPARISONS and len(values) == 2:
        target = cst.ComparisonTarget(_COMPARISONS[name](), values[1])
        return cst.Comparison(values[0], [target])
    return node


def _result(function: cst.BaseExpression) -> cst.BaseExpression:
    """Returns the result of a function without arguments."""
    if isinstance(function, cst.Lambda) and not function.params.params:
        return embedded(function.body)
    return cst.Call(embedded(function))
