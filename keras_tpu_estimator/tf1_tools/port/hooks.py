"""Hooks that fetch tensors. In a port they fetch names, because no graph exists."""

import ast
from collections.abc import Sequence

import libcst as cst

from keras_tpu_estimator.tf1_tools.check.reached import is_function
from keras_tpu_estimator.tf1_tools.check.scopes import Scope
from keras_tpu_estimator.tf1_tools.port.kinds import Kind
from keras_tpu_estimator.tf1_tools.port.program import Site
from keras_tpu_estimator.tf1_tools.port.values import UnportableError

# The argument of each hook that contains tensors, which is its first one.
TENSORS = {"LoggingTensorHook": "tensors", "NanTensorHook": "loss_tensor"}
_LOSS = cst.SimpleString('"loss"')


def hook(site: Site, arguments: Sequence[cst.Arg]) -> cst.BaseExpression:
    """Returns a hook that fetches the loss by its name.

    Raises:
        UnportableError: It fetches another tensor.
    """
    name = site.value.name.rpartition(".")[2]
    parameter = TENSORS[name]
    old = site.argument(0, parameter)
    fetched = [
        argument.with_changes(value=_named(site, old, argument.value))
        if old is not None
        and (argument.keyword.value if argument.keyword else parameter) == parameter
        and (argument.keyword or number == 0)
        else argument
        for number, argument in enumerate(arguments)
    ]
    return cst.Call(cst.parse_expression(f"kte.hooks.{name}"), fetched)


def _named(site: Site, old: ast.expr, new: cst.BaseExpression) -> cst.BaseExpression:
    """Returns fetches with names in place of tensors."""
    if isinstance(old, ast.Dict) and isinstance(new, cst.Dict):
        values = zip(new.elements, old.values, strict=True)
        return new.with_changes(
            elements=[e.with_changes(value=_named(site, v, e.value)) for e, v in values]
        )
    if isinstance(old, ast.List | ast.Tuple) and isinstance(new, cst.List | cst.Tuple):
        elements = zip(new.elements, old.elts, strict=True)
        return new.with_changes(
            elements=[
                e.with_changes(value=_named(site, v, e.value)) for e, v in elements
            ]
        )
    kind = site.program.kinds.kind(site.scope, old)
    if kind not in (Kind.TENSOR, Kind.VARIABLE):
        return new
    if isinstance(old, ast.Name) and _is_loss(site.scope, old):
        return _LOSS
    raise UnportableError(
        "pass the name of a tensor, which `kte.identity(x, name=...)` gives it, or the "
        "`path` of a variable"
    )


def _is_loss(scope: Scope, name: ast.Name) -> bool:
    """Returns whether a name is that of the loss in the specs of its function."""
    if not is_function(scope.node):
        return False
    losses = [
        keyword.value
        for node in ast.walk(scope.node)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Spec")
        for keyword in node.keywords
        if keyword.arg == "loss"
    ]
    stored = [
        node.lineno
        for node in ast.walk(scope.node)
        if isinstance(node, ast.Name)
        and node.id == name.id
        and isinstance(node.ctx, ast.Store)
    ]
    is_last = all(line < name.lineno for line in stored)
    return (
        is_last
        and bool(losses)
        and all(isinstance(v, ast.Name) and v.id == name.id for v in losses)
    )
