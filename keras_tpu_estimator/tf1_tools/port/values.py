"""Arguments that have another form in Keras, such as "SAME" and "same"."""

import ast
from collections.abc import Callable
from typing import Any

import libcst as cst


class UnportableError(Exception):
    """A call or statement that no rule covers, with what a person has to write."""


_Value = cst.BaseExpression
# The operations that Keras's layers also know by name.
_ACTIVATIONS = (
    "elu",
    "gelu",
    "leaky_relu",
    "log_softmax",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "softsign",
    "tanh",
)


_OPERATORS = (
    cst.BinaryOperation,
    cst.BooleanOperation,
    cst.Comparison,
    cst.IfExp,
    cst.Lambda,
    cst.UnaryOperation,
)


def embedded(node: cst.BaseExpression) -> cst.BaseExpression:
    """Returns an expression as a part of another one, in parentheses if needed."""
    if is_operation(node):
        return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return node


def is_operation(node: cst.BaseExpression) -> bool:
    """Returns whether an expression binds less tightly than a call."""
    return isinstance(node, _OPERATORS) and not node.lpar


def source_of(node: cst.CSTNode) -> str:
    """Returns the source of an expression."""
    return cst.Module([]).code_for_node(node)


def literal(node: _Value | None) -> Any:
    """Returns the value of a literal.

    Raises:
        ValueError: The expression is no literal.
    """
    if node is None:
        return None
    try:
        return ast.literal_eval(source_of(node).strip())
    except (SyntaxError, TypeError, ValueError) as error:
        raise ValueError(source_of(node)) from error


def expression(value: object) -> _Value:
    """Returns a literal as an expression, with strings in double quotes."""
    source = repr(value)
    if isinstance(value, str):
        source = '"' + value.replace('"', '\\"') + '"'
    return cst.parse_expression(source)


def lower(node: _Value) -> _Value:
    """Returns a string in lower case."""
    if isinstance(node, cst.SimpleString):
        return cst.SimpleString(node.value.lower())
    if isinstance(node, cst.IfExp):
        return node.with_changes(body=lower(node.body), orelse=lower(node.orelse))
    return cst.Call(cst.Attribute(embedded(node), cst.Name("lower")))


def inner(node: _Value, data_format: _Value | None = None) -> _Value:
    """Returns the strides of an image without those of its batch and channels."""
    if not isinstance(node, cst.List | cst.Tuple) or len(node.elements) != 4:
        raise UnportableError(
            f"pass only the two sizes of the image: `{source_of(node)}` may have four"
        )
    first = 2 if data_format and "NCHW" in source_of(data_format) else 1
    sizes = [element.value for element in node.elements][first : first + 2]
    if sizes[0].deep_equals(sizes[1]):
        return sizes[0]
    return cst.Tuple([cst.Element(size) for size in sizes])


def channels(node: _Value) -> _Value:
    """Returns the name that Keras gives to a layout of images."""
    names = {"NHWC": "channels_last", "NCHW": "channels_first"}
    try:
        return expression(names[literal(node)])
    except (KeyError, ValueError):
        raise UnportableError(
            "pass `data_format` as 'channels_last' or 'channels_first'"
        ) from None


def complement(node: _Value) -> _Value:
    """Returns the rate of units that are dropped."""
    if isinstance(node, cst.BinaryOperation) and isinstance(
        node.operator, cst.Subtract
    ):
        if source_of(node.left) in ("1", "1.0"):
            return node.right
    try:
        return expression(round(1 - literal(node), 12))
    except ValueError:
        return cst.parse_expression(f"1 - {source_of(embedded(node))}")


def half(node: _Value) -> _Value:
    """Returns half of a scale."""
    try:
        return expression(literal(node) / 2)
    except ValueError:
        return cst.parse_expression(f"{source_of(embedded(node))} / 2")


def transposed(node: _Value, is_transposed: _Value | None) -> _Value:
    """Returns a matrix, with its last axes exchanged where a flag is true."""
    try:
        flag = literal(is_transposed)
    except ValueError:
        raise UnportableError(
            "exchange the last axes with `keras.ops.swapaxes(x, -1, -2)` where "
            f"`{source_of(is_transposed)}`"  # type: ignore[arg-type]
        ) from None
    if not flag:
        return node
    return cst.parse_expression(f"keras.ops.swapaxes({source_of(node)}, -1, -2)")


def activation(node: _Value) -> _Value:
    """Returns the name of an activation, or other functions unchanged."""
    prefix, _, name = source_of(node).rpartition(".")
    if prefix == "keras.ops" and name in _ACTIVATIONS:
        return expression(name)
    return node


def sizes(node: _Value) -> _Value:
    """Returns a shape as a tuple."""
    if isinstance(node, cst.List):
        source = source_of(node).strip()[1:-1].strip().rstrip(",")
        comma = "," if len(node.elements) == 1 else ""
        return cst.parse_expression(f"({source}{comma})")
    return node


def positions(node: _Value, value: _Value | None = None) -> _Value:
    """Returns positions of cuts from a number of parts, or from their sizes."""
    try:
        parts = literal(node)
    except ValueError:
        raise UnportableError(
            "pass the number of parts, or the positions between them in place of "
            "their sizes"
        ) from None
    if isinstance(parts, int):
        return node
    return expression([sum(parts[: index + 1]) for index in range(len(parts) - 1)])


def simple(node: _Value) -> _Value:
    """Returns an expression that the code repeats, if it is short.

    Raises:
        UnportableError: It would be computed twice.
    """
    if isinstance(node, cst.Name | cst.Attribute | cst.Subscript):
        return node
    raise UnportableError(f"assign `{source_of(node)}` to a name first")


def number(node: _Value) -> _Value:
    """Returns a number.

    Raises:
        UnportableError: The source does not show it.
    """
    try:
        value = literal(node)
    except ValueError:
        value = None
    if isinstance(value, int | float):
        return node
    raise UnportableError(f"`{source_of(node)}` must be a number in the source")


def has_bias(initializer: _Value) -> _Value | None:
    """Returns `False` where the initializer of a bias is `None`, and else nothing."""
    return cst.Name("False") if source_of(initializer) == "None" else None


def initial(initializer: _Value) -> _Value | None:
    """Returns the initializer of a bias, or nothing for `None`.

    Raises:
        UnportableError: The source does not show whether it is `None`.
    """
    if source_of(initializer) == "None":
        return None
    if isinstance(initializer, cst.Call | cst.SimpleString):
        return initializer
    raise UnportableError(
        f"pass `use_bias=False` where `{source_of(initializer)}` is None"
    )


def named(scope: _Value, default: _Value) -> _Value:
    """Returns the name of a layer, which is numbered if the call passes none.

    Raises:
        UnportableError: Keras does not allow the name.
    """
    numbered = f"kte.unique_name({source_of(default)})"
    source = source_of(scope)
    if source in ("None", numbered):
        return cst.parse_expression(numbered)
    if not isinstance(scope, cst.SimpleString):
        return cst.parse_expression(f"{source_of(embedded(scope))} or {numbered}")
    if "/" in source:
        raise UnportableError(
            f"write `with kte.variable_scope(...)` for the first part of {source}"
        )
    return scope


# The functions that rules use, by name. An argument whose value is `None` is left out.
VALUES: dict[str, Callable[..., _Value | None]] = {
    function.__name__: function
    for function in (
        activation,
        channels,
        complement,
        half,
        has_bias,
        initial,
        inner,
        lower,
        named,
        number,
        positions,
        simple,
        sizes,
        transposed,
    )
}
