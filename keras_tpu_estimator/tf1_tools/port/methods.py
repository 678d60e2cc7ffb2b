"""Methods and attributes of tensors, variables, shapes and optimizers."""

import ast
import re

import libcst as cst

from keras_tpu_estimator.tf1_tools.port import special
from keras_tpu_estimator.tf1_tools.port.kinds import Kind
from keras_tpu_estimator.tf1_tools.port.program import Site
from keras_tpu_estimator.tf1_tools.port.regions import Region
from keras_tpu_estimator.tf1_tools.port.special import NOTHING, code
from keras_tpu_estimator.tf1_tools.port.values import UnportableError, embedded

# Texts with a single `%s`.
_ONE_VALUE = re.compile(r"([^%]|%%)*%[rs]([^%]|%%)*", re.DOTALL)
# Methods that only a session can run.
_OF_SESSIONS = ("eval", "run")
_LOG = re.compile(
    r"((.*\.)?(logging|logger|_logger)\."
    r"(debug|info|warn|warning|error|exception|fatal|vlog|log)|print)"
)


def is_log(function: str) -> bool:
    """Returns whether a function of this name writes a message."""
    return _LOG.fullmatch(function) is not None


def call(site: Site, node: cst.Call) -> cst.BaseExpression:
    """Returns the counterpart of a call of a method or of Python, or the call."""
    function = node.func
    if site.region is not Region.STEP:
        return node
    if isinstance(function, cst.Name) and function.value == "set":
        return _set(site, node)
    if isinstance(function, cst.Attribute):
        return _method(site, node, function)
    return node


def _method(site: Site, node: cst.Call, function: cst.Attribute) -> cst.BaseExpression:
    owner, name = function.value, function.attr.value
    kind = site.value.value.kind
    if name in special.METHODS and kind is not Kind.PLAIN:
        return special.METHODS[name](site, node, owner)
    if name == "get_shape" and not node.args:
        return cst.Attribute(embedded(owner), cst.Name("shape"))
    if name == "as_list" and not node.args:
        return cst.Call(cst.Name("list"), [cst.Arg(owner)])
    if name == "set_shape":
        return NOTHING  # All sizes are known.
    if name.startswith("assign") and kind is Kind.STEP_COUNT:
        return NOTHING  # The estimator counts the steps.
    if name == "initialized_value":
        return owner
    if name in _OF_SESSIONS and kind in (Kind.TENSOR, Kind.VARIABLE):
        raise UnportableError("there is no session; read values in a hook")
    if name == "__init__" and _is_of_optimizer(site):
        return NOTHING
    return node


def formatted(site: Site, node: cst.BinaryOperation) -> cst.BaseExpression:
    """Returns `"%s" % x.shape` with a shape that is one value, and not several."""
    operands = site.node
    if not isinstance(operands, ast.BinOp) or not isinstance(operands.op, ast.Mod):
        return node
    kind = site.program.kinds.kind(site.scope, operands.right)
    text = operands.left.value if isinstance(operands.left, ast.Constant) else None
    is_one_value = isinstance(text, str) and _ONE_VALUE.fullmatch(text)
    if kind is not Kind.SHAPE or not is_one_value:
        return node
    return node.with_changes(right=code("({x},)", x=node.right))


def _set(site: Site, node: cst.Call) -> cst.BaseExpression:
    """Returns the different variables of a list; Keras's are not hashable."""
    if not isinstance(site.node, ast.Call) or len(site.node.args) != 1:
        return node
    if site.program.kinds.kind(site.scope, site.node.args[0]) is not Kind.VARIABLES:
        return node
    return code("{{v.path: v for v in {x}}}.values()", x=node.args[0].value)


def attribute(site: Site, node: cst.Attribute) -> cst.BaseExpression:
    """Returns the counterpart of an attribute, or the attribute itself."""
    name, owner = node.attr.value, node.value
    kind = site.value.kind
    if name == "name":
        return _name(site, node, kind)
    if name in ("ndims", "rank") and kind is Kind.SHAPE:
        return cst.Call(cst.Name("len"), [cst.Arg(owner)])
    if name == "value" and kind is Kind.SIZE:
        return owner
    if name == "base_dtype":
        return owner
    return node


def _name(site: Site, node: cst.Attribute, kind: Kind | None) -> cst.BaseExpression:
    """Returns the path of a variable, which was its name."""
    owner = node.value
    if kind is Kind.VARIABLE:
        return cst.Attribute(owner, cst.Name("path"))
    if isinstance(owner, cst.Attribute) and owner.attr.value == "op":
        if site.value.value.kind is Kind.VARIABLE:
            return cst.Attribute(owner.value, cst.Name("path"))
        raise UnportableError("operations have no names; a variable has a `path`")
    if kind is Kind.TENSOR:
        raise UnportableError("tensors have no names; a variable has a `path`")
    if kind is None and _may_be_variable(site.value):
        raise UnportableError(
            "if this is a variable, write `path`, its name without :0"
        )
    return node


def _may_be_variable(site: Site) -> bool:
    """Returns whether an object of unknown kind may be one of the graph."""
    is_module = bool(site.name) or site.scope.meaning(site.node) is not None
    return isinstance(site.node, ast.Name) and not (
        is_module or site.node.id in ("self", "cls", "FLAGS")
    )


def _is_of_optimizer(site: Site) -> bool:
    """Returns whether code is in a class that only extends TensorFlow's optimizer."""
    scope = site.scope
    while scope.parent is not None and not isinstance(scope.node, ast.ClassDef):
        scope = scope.parent
    node = scope.node
    if not isinstance(node, ast.ClassDef) or scope.parent is None:
        return False
    bases = [scope.parent.meaning(base) for base in node.bases]
    return bool(bases) and all(
        isinstance(base, str) and base.endswith(".train.Optimizer") for base in bases
    )
