"""Python 2 syntax in the files of a script, and calls that work only in Python 2."""

import ast
import dataclasses
import re
from collections.abc import Container, Iterator

from keras_tpu_estimator.tf1_tools.check.guards import guarded_in
from keras_tpu_estimator.tf1_tools.check.scopes import Found, Scope, canonical
from keras_tpu_estimator.tf1_tools.check.uses import Unfollowed, Use

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
    matches = []
    for rule in _RULES:
        match = re.search(rule.pattern, code, re.MULTILINE)
        if match:
            line = code.count("\n", 0, match.end()) + 1
            count = len(re.findall(rule.pattern, code, re.MULTILINE))
            times = "once" if count == 1 else f"{count} times"
            matches.append(
                (
                    line,
                    f"Python 2 ({times}): {rule.before}. `2to3 -w FILE`, which "
                    f"comes with Python up to 3.12, writes {rule.now}.",
                )
            )
    yield from sorted(matches)


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


# Functions and methods whose results are lists only in Python 2.
_LISTS = ("filter", "map", "zip")
_VIEWS = ("items", "keys", "values")
# Methods of Python 2, their numbers of arguments, and the code that replaces them.
_METHODS = {
    "has_key": (1, "key in x"),
    "iteritems": (0, "x.items()"),
    "iterkeys": (0, "x.keys()"),
    "itervalues": (0, "x.values()"),
    "next": (0, "next(x)"),
}
_DICTS = (
    "collections.Counter",
    "collections.OrderedDict",
    "collections.defaultdict",
    "dict",
)
_ITERATORS = (
    *_LISTS,
    "csv.DictReader",
    "csv.reader",
    "enumerate",
    "iter",
    "open",
    "os.walk",
    "reversed",
    "tf.io.tf_record_iterator",
    "tf.python_io.tf_record_iterator",
)


def calls_of_python_2_in(
    module: Scope, functions: Container[str]
) -> Iterator[Use | Unfollowed]:
    """Yields indexed results and methods that Python 3 lacks, except guarded ones.

    `functions` contains the names of functions that the script defines. A method of an
    object that the source does not show is a remark, once for each file.
    """
    path = module.source.path
    guarded = guarded_in(module.node, exceptions=("TypeError",))
    remarks = set()
    for scope, node in module.walk():
        if node in guarded:
            continue
        name, now = _indexed(node, scope) or _called(node, scope) or ("", "")
        if name:
            advice = f"It is Python 2. `2to3 -w FILE` writes {now}."
            yield Use(name, path, _line(node), node, scope, advice=advice)
            continue
        method, _ = _method(node) or ("", None)
        if method and method not in functions and method not in remarks:
            remarks.add(method)
            code, now = ast.unparse(node), _METHODS[method][1]
            what = f"{code}: if it is Python 2, `2to3 -w FILE` writes {now}"
            yield Unfollowed(path, _line(node), what)


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 1)


def _indexed(node: ast.AST, scope: Scope) -> tuple[str, str] | None:
    """Returns a description of `map(...)[i]` and similar code, and its replacement."""
    if isinstance(node, ast.Subscript):
        before, now, inner = "{}[i]", "list({})[i]", node.value
    elif isinstance(node, ast.Call) and _name_of(node, scope) == "len" and node.args:
        before, now, inner = "len({})", "len(list({}))", node.args[0]
        if not _of_iterator(inner, scope):
            return None  # The views of a dict have a length.
    else:
        return None
    shown = _of_iterator(inner, scope) or _of_view(inner, scope)
    return (before.format(shown), now.format(shown)) if shown else None


def _of_iterator(node: ast.expr, scope: Scope) -> str:
    """Returns "map(...)" or similar code if a value is such a call, or ""."""
    value, scope = scope.value(node)
    name = _name_of(value, scope)
    return f"{name}(...)" if name in _LISTS else ""


def _of_view(node: ast.expr, scope: Scope) -> str:
    """Returns "x.keys()" or similar code if a value is a view of a dict, or ""."""
    value, scope = scope.value(node)
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return ""
    method = value.func.attr
    is_view = method in _VIEWS and _is_dict(value.func.value, scope)
    return f"x.{method}()" if is_view else ""


def _called(node: ast.AST, scope: Scope) -> tuple[str, str] | None:
    """Returns a method of Python 2 of a known object, and its replacement."""
    call = _method(node)
    if call is None:
        return None
    method, owner = call
    is_known = _is_iterator if method == "next" else _is_dict
    if not is_known(owner, scope):
        return None
    return f"x.{method}()", _METHODS[method][1]


def _method(node: ast.AST) -> tuple[str, ast.expr] | None:
    """Returns the name of a called method of Python 2, and its object."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    count, _ = _METHODS.get(node.func.attr, (None, ""))
    if count != len(node.args) or node.keywords:
        return None
    return node.func.attr, node.func.value


def _is_dict(node: ast.expr, scope: Scope) -> bool:
    value, scope = scope.value(node)
    return isinstance(value, ast.Dict | ast.DictComp) or (
        _name_of(value, scope) in _DICTS
    )


def _is_iterator(node: ast.expr, scope: Scope) -> bool:
    value, scope = scope.value(node)
    if isinstance(value, ast.Call):
        called = scope.meaning(value.func)
        if isinstance(called, Found):
            return _is_generator(called.node)
    name = _name_of(value, scope)
    is_known = name in _ITERATORS or name.startswith("itertools.")
    return is_known or isinstance(value, ast.GeneratorExp)


def _is_generator(node: ast.AST) -> bool:
    """Returns whether a function without decorators yields values itself."""
    if not isinstance(node, ast.FunctionDef) or node.decorator_list:
        return False
    waiting: list[ast.AST] = [*node.body]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(inner, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(inner)
    return False


def _name_of(node: ast.AST, scope: Scope) -> str:
    """Returns the full name of a called function, or a built-in one's, or ""."""
    if not isinstance(node, ast.Call):
        return ""
    meaning = scope.meaning(node.func)
    if isinstance(meaning, str):
        return canonical(meaning)
    if not isinstance(node.func, ast.Name):
        return ""
    name = node.func.id
    return "" if scope.binds(name) or scope.binds("*") else name
