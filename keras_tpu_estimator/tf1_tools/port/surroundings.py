"""The code around replaced expressions, which must keep its meaning and its syntax."""

from typing import Any

import libcst as cst
from libcst import matchers

from keras_tpu_estimator.tf1_tools.port.special import NOTHING, is_nothing
from keras_tpu_estimator.tf1_tools.port.values import embedded, is_operation

# The parts of a node whose operations must be in parentheses.
_OPERANDS: dict[type[cst.CSTNode], tuple[str, ...]] = {
    cst.Attribute: ("value",),
    cst.BinaryOperation: ("left", "right"),
    cst.BooleanOperation: ("left", "right"),
    cst.Comparison: ("left",),
    cst.ComparisonTarget: ("comparator",),
    cst.Subscript: ("value",),
    cst.UnaryOperation: ("expression",),
}


class Surroundings(cst.CSTTransformer):
    """Adds parentheses to operations that replace names and calls, and removes what has
    lost its value.
    """

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        """Adds the parentheses before a node itself is replaced."""
        parts = {
            name: embedded(getattr(updated_node, name))
            for name in _OPERANDS.get(type(original_node), ())
            if not is_operation(getattr(original_node, name))
        }
        if parts:
            updated_node = updated_node.with_changes(**parts)
        return super().on_leave(original_node, updated_node)

    def leave_Arg(
        self, original_node: cst.Arg, updated_node: cst.Arg
    ) -> cst.Arg | cst.RemovalSentinel:
        if updated_node.keyword and is_nothing(updated_node.value):
            return cst.RemoveFromParent()
        return updated_node

    def leave_Element(
        self, original_node: cst.Element, updated_node: cst.Element
    ) -> cst.Element | cst.RemovalSentinel:
        if is_nothing(updated_node.value):
            return cst.RemoveFromParent()
        return updated_node

    def leave_List(
        self, original_node: cst.List, updated_node: cst.List
    ) -> cst.BaseExpression:
        if original_node.elements and not updated_node.elements:
            return NOTHING
        return updated_node

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.BaseSuite:
        if updated_node.body:
            return updated_node
        return updated_node.with_changes(body=[cst.SimpleStatementLine([cst.Pass()])])


def is_empty(body: cst.BaseSuite) -> bool:
    """Returns whether a block contains only `pass`."""
    return all(
        isinstance(line, cst.SimpleStatementLine)
        and all(isinstance(statement, cst.Pass) for statement in line.body)
        for line in body.body
    )


def has_nothing(node: cst.CSTNode) -> bool:
    """Returns whether a part of a node has no counterpart."""
    return bool(matchers.findall(node, matchers.Name(NOTHING.value)))
