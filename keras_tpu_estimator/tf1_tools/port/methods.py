"""Methods and attributes of tensors, variables, shapes and optimizers."""

import ast

import libcst as cst

from keras_tpu_estimator.tf1_tools.port import special
from keras_tpu_estimator.tf1_tools.port.kinds import Kind
from keras_tpu_estimator.tf1_tools.port.program import Place
from keras_tpu_estimator.tf1_tools.port.regions import Region
from keras_tpu_estimator.tf1_tools.port.special import NOTHING
from keras_tpu_estimator.tf1_tools.port.values import UnportableError, embedded

# Methods that only a session can run.
_OF_SESSIONS = ("eval", "run")


def call(place: Place, node: cst.Call) -> cst.BaseExpression:
    """Returns the counterpart of a method call, or the call itself."""
    function = node.func
    if not isinstance(function, cst.Attribute) or place.region is not Region.STEP:
        return node
    owner, name = function.value, function.attr.value
    kind = place.value.value.kind
    if name in special.METHODS and kind is not Kind.PLAIN:
        return special.METHODS[name](place, node, owner)
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
    if name == "__init__" and _is_of_optimizer(place):
        return NOTHING
    return node


def attribute(place: Place, node: cst.Attribute) -> cst.BaseExpression:
    """Returns the counterpart of an attribute, or the attribute itself."""
    name, owner = node.attr.value, node.value
    kind = place.value.kind
    if name == "name":
        return _name(place, node, kind)
    if name in ("ndims", "rank") and kind is Kind.SHAPE:
        return cst.Call(cst.Name("len"), [cst.Arg(owner)])
    if name == "value" and kind is Kind.SIZE:
        return owner
    if name == "base_dtype":
        return owner
    return node


def _name(place: Place, node: cst.Attribute, kind: Kind | None) -> cst.BaseExpression:
    """Returns the path of a variable, which was its name."""
    owner = node.value
    if kind is Kind.VARIABLE:
        return cst.Attribute(owner, cst.Name("path"))
    if isinstance(owner, cst.Attribute) and owner.attr.value == "op":
        if place.value.value.kind is Kind.VARIABLE:
            return cst.Attribute(owner.value, cst.Name("path"))
        raise UnportableError("operations have no names; a variable has a `path`")
    if kind is Kind.TENSOR:
        raise UnportableError("tensors have no names; a variable has a `path`")
    if kind is None and _may_be_variable(place.value):
        raise UnportableError(
            "if this is a variable, write `path`, its name without :0"
        )
    return node


def _may_be_variable(place: Place) -> bool:
    """Returns whether an object of unknown kind may be one of the graph."""
    is_module = bool(place.name) or place.scope.meaning(place.node) is not None
    return isinstance(place.node, ast.Name) and not (
        is_module or place.node.id in ("self", "cls", "FLAGS")
    )


def _is_of_optimizer(place: Place) -> bool:
    """Returns whether code is in a class that only extends TensorFlow's optimizer."""
    scope = place.scope
    while scope.parent is not None and not isinstance(scope.node, ast.ClassDef):
        scope = scope.parent
    node = scope.node
    if not isinstance(node, ast.ClassDef) or scope.parent is None:
        return False
    bases = [scope.parent.meaning(base) for base in node.bases]
    return bool(bases) and all(
        isinstance(base, str) and base.endswith(".train.Optimizer") for base in bases
    )
