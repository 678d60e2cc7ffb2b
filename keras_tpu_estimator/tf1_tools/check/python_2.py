"""Python 2 syntax in the files of a script."""

import ast
import dataclasses
import re
from collections.abc import Iterator

# Comments and strings, which contain no syntax.
_TEXT = re.compile(
    r"#[^\n]*"
    r'|"""(?:\\.|[^\\])*?"""'
    r"|'''(?:\\.|[^\\])*?'''"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)
_START = r"(?:^|[;:])[ \t]*"


@dataclasses.dataclass(frozen=True)
class _Rule:
    """A pattern of Python 2 syntax.

    Attributes:
        pattern: A regular expression for code in which all strings are empty.
        before: The syntax, as messages show it.
        now: The replacement that `2to3` writes.
    """

    pattern: str
    before: str
    now: str


_RULES = (
    _Rule(
        _START + r"print[ \t]*(?:>>|[\w\"`\[{~]|(?<=[ \t])-)",
        "print x",
        "print(x)",
    ),
    _Rule(r"\bexcept\b[^:\n]*,[ \t]*\w+[ \t]*:", "except E, e", "except E as e"),
    _Rule(r"\braise[ \t]+[\w.]+[ \t]*,", "raise E, x", "raise E(x)"),
    _Rule(_START + r"exec[ \t]+[\w\"]", "exec x", "exec(x)"),
    _Rule(r"`[^`\n]*`", "`x`", "repr(x)"),
    _Rule(r"<>", "a <> b", "a != b"),
    _Rule(r"(?<![\w.])0[0-7]*[1-7][0-7]*(?![\w.])", "0777", "0o777"),
    _Rule(r"(?<![\w.])\d+[lL]\b", "10L", "10"),
    _Rule(r"\b[uU][rR](?=\"\")", 'ur"x"', 'r"x"'),
    _Rule(
        r"\bdef[ \t]+\w+[ \t]*\((?:[^()=]*,)?[ \t]*\(",
        "def f((a, b))",
        "def f(xxx_todo_changeme)",
    ),
)


def python_2_in(text: str) -> Iterator[tuple[int, str]]:
    """Yields the first line of each kind of Python 2 syntax, and a sentence."""
    code = _TEXT.sub(_emptied, text)
    found = []
    for rule in _RULES:
        match = re.search(rule.pattern, code, re.MULTILINE)
        if match:
            line = code.count("\n", 0, match.end()) + 1
            count = len(re.findall(rule.pattern, code, re.MULTILINE))
            times = "once" if count == 1 else f"{count} times"
            found.append(
                (
                    line,
                    f"Python 2 ({times}): {rule.before}. `2to3 -w FILE`, which "
                    f"comes with Python up to 3.12, writes {rule.now}.",
                )
            )
    yield from sorted(found)


def mixed_tabs_in(error: str) -> str:
    """Returns a sentence about an error of tabs that Python 2 accepts, or ""."""
    if "inconsistent use of tabs" not in error:
        return ""
    return (
        "Python 2: tabs and spaces mixed in the indentation. Run `expand -i -t 8 OLD "
        "> NEW`, and then `2to3 -w NEW`, which comes with Python up to 3.12."
    )


def prints_to_file(tree: ast.Module) -> bool:
    """Returns whether a file has `print >>f`, which Python 3 parses as a shift."""
    return any(
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.RShift)
        and isinstance(node.left, ast.Name)
        and node.left.id == "print"
        for node in ast.walk(tree)
    )


def _emptied(match: re.Match[str]) -> str:
    """Returns a string or comment without its text, but with its line breaks."""
    text = match.group()
    lines = "\n" * text.count("\n")
    return lines if text.startswith("#") else f'""{lines}'
