"""The rules by which calls of TensorFlow become calls of Keras.

A rule is a line of `rules.toml`: the parameters of the original in their order, an
arrow, and the Keras code with these parameters in it:

    "(features, name-, alpha=0.2) -> keras.ops.leaky_relu(features, alpha)"

With `(*)`, the counterpart takes the same arguments: "(*) -> keras.ops.einsum".
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

import libcst as cst
from libcst import matchers

from keras_tpu_estimator.tf1_tools.port.values import (
    VALUES,
    UnportableError,
    embedded,
    source_of,
)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of a function of TensorFlow.

    Attributes:
        synonyms: Deprecated names of it, which are passed by keyword.
        default: The source of its value where Keras has another default, or "".
        is_optional: Whether the Keras code needs no counterpart of it.
        constants: The values that need no counterpart, as sources.
    """

    name: str
    synonyms: tuple[str, ...] = ()
    default: str = ""
    is_optional: bool = False
    constants: tuple[str, ...] = ()

    @classmethod
    def from_source(cls, source: str) -> "Parameter":
        """Reads a parameter such as `axis|dim`, `name-`, `k=1` or `dtype: None`."""
        source, _, default = (part.strip() for part in source.partition("="))
        source, _, constants = (part.strip() for part in source.partition(":"))
        name, *synonyms = source.removesuffix("-").split("|")
        return cls(
            name,
            tuple(synonyms),
            default,
            source.endswith("-"),
            tuple(value.strip() for value in constants.split("|") if constants),
        )


@dataclasses.dataclass(frozen=True)
class Rule:
    """The counterpart of a function of TensorFlow, as code over its parameters.

    Attributes:
        code: Keras code, or "nothing" where Keras needs no counterpart.
        is_renaming: Whether the code is a function with the original's parameters.
    """

    parameters: tuple[Parameter, ...]
    code: str
    is_renaming: bool = False

    @classmethod
    def from_source(cls, source: str) -> "Rule":
        """Reads a rule such as `(x, name-) -> keras.ops.abs(x)`."""
        match = re.fullmatch(r"\((.*?)\)\s*->\s*(.*)", " ".join(source.split()))
        if match is None:
            raise ValueError(
                "A rule must be '(parameters) -> code'. Received: "
                f"{source!r}. Write the original's parameters before the arrow."
            )
        names = [part.strip() for part in match[1].split(",") if part.strip()]
        if names == ["*"]:
            return cls((), match[2], is_renaming=True)
        return cls(tuple(map(Parameter.from_source, names)), match[2])

    def bound(self, arguments: Sequence[cst.Arg]) -> dict[str, cst.Arg]:
        """Returns the arguments of a call by parameter.

        Raises:
            UnportableError: The arguments are starred, or the rule does not know one.
        """
        names = {
            synonym: parameter.name
            for parameter in self.parameters
            for synonym in (parameter.name, *parameter.synonyms)
        }
        result: dict[str, cst.Arg] = {}
        for position, argument in enumerate(arguments):
            if argument.star:
                raise UnportableError("pass each argument by itself, without a star")
            if argument.keyword is not None:
                keyword = argument.keyword.value
                name = names.get(keyword, "")
                if not name:
                    raise UnportableError(f"`{keyword}=` has no counterpart")
            elif position < len(self.parameters):
                name = self.parameters[position].name
            else:
                raise UnportableError("it has more arguments than the original")
            result[name] = argument
        return result


def expand(rule: Rule, arguments: Sequence[cst.Arg]) -> cst.BaseExpression:
    """Returns the Keras code of a call with these arguments.

    Arguments that were not passed are left out, so that Keras's defaults apply.

    Raises:
        UnportableError: An argument has no counterpart, or a needed one is missing.
    """
    template = cst.parse_expression(rule.code)
    if rule.is_renaming:
        unnamed = [a for a in arguments if not a.keyword or a.keyword.value != "name"]
        return cst.Call(template, ended(unnamed))
    bound = rule.bound(arguments)
    names = matchers.findall(template, matchers.Name())
    used = {name.value for name in names if isinstance(name, cst.Name)}
    for parameter in rule.parameters:
        argument = bound.get(parameter.name)
        if argument is None or parameter.name in used or parameter.is_optional:
            continue
        if source_of(argument.value) not in parameter.constants:
            raise UnportableError(
                f"`{parameter.name}={source_of(argument.value)}` has no counterpart"
            )
    values: dict[str, cst.BaseExpression | None] = {}
    for parameter in rule.parameters:
        if parameter.name in bound:
            values[parameter.name] = bound[parameter.name].value
        elif parameter.default:
            values[parameter.name] = cst.parse_expression(parameter.default)
        else:
            values[parameter.name] = None
    expanded = template.visit(_Expander(values, VALUES))
    if not isinstance(expanded, cst.BaseExpression):
        raise UnportableError("it must be an expression")
    if isinstance(expanded, cst.Name) and expanded.value in values:
        raise UnportableError(f"`{expanded.value}=` must be passed")
    return expanded


# Stands in a template for an argument that was not passed.
_ABSENT = cst.Name("__absent__")


class _Expander(cst.CSTTransformer):
    """Puts arguments into a template."""

    def __init__(
        self,
        values: Mapping[str, cst.BaseExpression | None],
        functions: Mapping[str, object],
    ):
        super().__init__()
        self._values = values
        self._functions = functions
        self._labels = 0

    def visit_Arg_keyword(self, node: cst.Arg) -> None:
        self._labels += 1

    def leave_Arg_keyword(self, node: cst.Arg) -> None:
        self._labels -= 1

    def visit_Attribute_attr(self, node: cst.Attribute) -> None:
        self._labels += 1

    def leave_Attribute_attr(self, node: cst.Attribute) -> None:
        self._labels -= 1

    def visit_Call_func(self, node: cst.Call) -> None:
        self._labels += self._is_function(node.func)

    def leave_Call_func(self, node: cst.Call) -> None:
        self._labels -= self._is_function(node.func)

    def _is_function(self, node: cst.BaseExpression) -> bool:
        return isinstance(node, cst.Name) and node.value in self._functions

    def leave_Name(
        self, original_node: cst.Name, updated_node: cst.Name
    ) -> cst.BaseExpression:
        if self._labels or updated_node.value not in self._values:
            return updated_node
        value = self._values[updated_node.value]
        return _ABSENT if value is None else value

    def leave_Arg(
        self, original_node: cst.Arg, updated_node: cst.Arg
    ) -> cst.Arg | cst.RemovalSentinel:
        value = updated_node.value
        if isinstance(value, cst.Ellipsis) and updated_node.keyword:
            passed = self._values[updated_node.keyword.value]
            if passed is None:
                return cst.RemoveFromParent()
            return updated_node.with_changes(value=passed)
        if value is _ABSENT and updated_node.keyword:
            return cst.RemoveFromParent()
        return updated_node

    def leave_Call(
        self, original_node: cst.Call, updated_node: cst.Call
    ) -> cst.BaseExpression:
        name = updated_node.func
        absent = [argument.value is _ABSENT for argument in updated_node.args]
        if isinstance(name, cst.Name) and name.value in self._functions:
            if absent[0]:
                return _ABSENT
            function = self._functions[name.value]
            passed = (
                None if argument.value is _ABSENT else argument.value
                for argument in updated_node.args
            )
            result = function(*passed)  # type: ignore[operator]
            return _ABSENT if result is None else result
        arguments = [a for a in updated_node.args if a.value is not _ABSENT]
        first = absent.index(True) if any(absent) else len(absent)
        if any(not argument.keyword for argument in arguments[first:]):
            raise UnportableError(
                f"`{cst.Module([]).code_for_node(original_node.func)}` needs an "
                "argument that the call does not pass"
            )
        return updated_node.with_changes(args=ended(arguments))

    def leave_BinaryOperation(
        self, original_node: cst.BinaryOperation, updated_node: cst.BinaryOperation
    ) -> cst.BaseExpression:
        return updated_node.with_changes(
            left=embedded(updated_node.left), right=embedded(updated_node.right)
        )

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        return updated_node.with_changes(value=embedded(updated_node.value))

    def leave_Subscript(
        self, original_node: cst.Subscript, updated_node: cst.Subscript
    ) -> cst.BaseExpression:
        return updated_node.with_changes(value=embedded(updated_node.value))


def ended(arguments: Sequence[cst.Arg]) -> Sequence[cst.Arg]:
    """Returns arguments without a comma after the last one."""
    if not arguments:
        return arguments
    last = arguments[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return [*arguments[:-1], last]
