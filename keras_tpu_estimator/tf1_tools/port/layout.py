"""The layout of rewritten statements, which is that of `black`."""

import libcst as cst

from keras_tpu_estimator.tf1_tools.port.values import source_of

_WIDTHS = (80, 88, 100, 120)
_INDENT = 4


def width_of(text: str) -> int:
    """Returns the line length that a file keeps."""
    longest = max(map(len, text.splitlines()), default=0)
    return next((width for width in _WIDTHS if longest <= width), _WIDTHS[0])


def arranged(before: cst.Call, after: cst.BaseExpression) -> cst.BaseExpression:
    """Returns a call with the comments between the arguments that it replaces."""
    if "#" not in source_of(before) or not isinstance(after, cst.Call):
        return after
    call = after.func if isinstance(after.func, cst.Call) else after
    if len(call.args) > len(before.args):
        return after
    separators = [*before.args[: len(call.args) - 1], before.args[-1]]
    arguments = [
        argument.with_changes(
            comma=separator.comma, whitespace_after_arg=separator.whitespace_after_arg
        )
        for argument, separator in zip(call.args, separators, strict=True)
    ]
    laid_out = call.with_changes(
        args=arguments, whitespace_before_args=before.whitespace_before_args
    )
    replaced = after.deep_replace(call, laid_out)
    return replaced if isinstance(replaced, cst.BaseExpression) else after


def fitted(
    statement: cst.SimpleStatementLine, indent: int, width: int
) -> cst.SimpleStatementLine:
    """Returns a statement whose calls have several lines where one is too long."""
    (first, *more) = statement.body
    value = getattr(first, "value", None)
    if more or not isinstance(value, cst.BaseExpression):
        return statement
    before = len(source_of(first)) - len(source_of(value))
    lines = source_of(first).splitlines()
    if indent + len(lines[0]) <= width and max(map(len, lines)) <= width:
        return statement
    if isinstance(value, cst.IfExp):
        return statement.with_changes(body=[first.with_changes(value=_lines(value))])
    fitting = _Fitting(indent, width).fit(value, before, 0, 0)
    return statement.with_changes(body=[first.with_changes(value=fitting)])


def _lines(node: cst.IfExp) -> cst.IfExp:
    """Returns a choice between two values, with each part on its own line."""
    return node.with_changes(
        lpar=[cst.LeftParen(whitespace_after=_newline(_INDENT))],
        rpar=[cst.RightParen(whitespace_before=_newline(0))],
        whitespace_before_if=_newline(_INDENT),
        whitespace_before_else=_newline(_INDENT),
    )


class _Fitting:
    """Breaks calls into lines, at an indentation of the statement."""

    def __init__(self, indent: int, width: int):
        self._indent = indent
        self._width = width

    def fit(
        self, node: cst.BaseExpression, before: int, after: int, depth: int
    ) -> cst.BaseExpression:
        """Returns an expression that fits between the text before and after it."""
        if self._fits(source_of(node), before, after):
            return node
        if not isinstance(node, cst.Call) or not node.args or "#" in source_of(node):
            return node
        if isinstance(node.func, cst.Call) and node.func.args:
            suffix = len(source_of(node)) - len(source_of(node.func))
            if suffix < self._width // 2:
                inner = self.fit(node.func, before, after + suffix, depth)
                return node.with_changes(func=inner)
        return self._broken(node, depth)

    def _fits(self, source: str, before: int, after: int) -> bool:
        return "\n" not in source and (
            self._indent + before + len(source) + after <= self._width
        )

    def _broken(self, call: cst.Call, depth: int) -> cst.Call:
        """Returns a call with its arguments on a line, or each on its own one."""
        inside = depth + _INDENT
        arguments = [a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in call.args]
        line = ", ".join(map(source_of, arguments))
        is_one_line = self._fits(line, inside, 0)
        space: cst.BaseParenthesizableWhitespace = cst.SimpleWhitespace(" ")
        if not is_one_line:
            space = _newline(inside)
            arguments = [
                a.with_changes(value=self.fit(a.value, inside + _label(a), 1, inside))
                for a in arguments
            ]
        separated = [
            a.with_changes(
                comma=cst.Comma(whitespace_after=space),
                whitespace_after_arg=cst.SimpleWhitespace(""),
            )
            for a in arguments
        ]
        end = arguments[-1].with_changes(whitespace_after_arg=_newline(depth))
        if not is_one_line:
            end = separated[-1].with_changes(
                comma=cst.Comma(whitespace_after=_newline(depth))
            )
        return call.with_changes(
            args=[*separated[:-1], end], whitespace_before_args=_newline(inside)
        )


def _newline(depth: int) -> cst.ParenthesizedWhitespace:
    return cst.ParenthesizedWhitespace(
        cst.TrailingWhitespace(),
        indent=True,
        last_line=cst.SimpleWhitespace(" " * depth),
    )


def _label(argument: cst.Arg) -> int:
    """Returns the length of `name=` before the value of an argument."""
    return len(source_of(argument)) - len(source_of(argument.value))
