"""The parts of a module that run only if names and libraries exist."""

import ast
import functools
import importlib.util
from collections.abc import Container, Iterator

from keras_tpu_estimator.tf1.names import catalogue

_GUARDS = (
    "AttributeError",
    "Exception",
    "ImportError",
    "ModuleNotFoundError",
    "NameError",
)


def guarded_in(
    tree: ast.AST, libraries: Container[str] = (), exceptions: tuple[str, ...] = ()
) -> frozenset[ast.AST]:
    """Returns the nodes of a module without which the script also runs.

    These are the nodes of a `try` whose names may be missing, and of its handlers,
    except handlers that certainly run. `libraries` are the script's own modules.
    Handlers of `exceptions` count as well.
    """
    errors = (*_GUARDS, *exceptions)
    statements = (
        statement
        for node in ast.walk(tree)
        for statement in _guarded(node, errors, libraries)
    )
    return frozenset(inner for node in statements for inner in ast.walk(node))


def unreached_in(tree: ast.AST, libraries: Container[str]) -> frozenset[ast.AST]:
    """Returns the nodes that follow a guarded import of an absent library.

    The import itself is one of them. `libraries` are the script's own modules.
    """
    statements = (
        statement
        for node in ast.walk(tree)
        if isinstance(node, ast.Try) and _handles(node, _GUARDS)
        for statement in _after_absent(node, libraries)
    )
    return frozenset(inner for node in statements for inner in ast.walk(node))


def asks_version(test: str) -> bool:
    """Returns whether a condition depends on the version of Python or a library."""
    return any(part in test.lower() for part in ("version", "py2", "py3"))


def libraries_of(node: ast.AST) -> Iterator[str]:
    """Yields the top-level names that an import needs."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        names = [node.module or ""]
    else:
        return
    yield from dict.fromkeys(name.partition(".")[0] for name in names)


def is_absent(name: str, libraries: Container[str]) -> bool:
    """Returns whether a library is neither installed nor the script's own."""
    is_known = name in libraries or name in catalogue.ROOTS
    return not is_known and not _is_installed(name)


@functools.cache
def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:
        return True  # It is a running module, such as `__main__`.


def _handles(node: ast.Try, errors: tuple[str, ...]) -> bool:
    handled = " ".join(
        "Exception" if handler.type is None else ast.unparse(handler.type)
        for handler in node.handlers
    )
    return any(error in handled for error in errors)


def _after_absent(node: ast.Try, libraries: Container[str]) -> list[ast.stmt]:
    """Returns the statements of a `try` from the first absent import on."""
    for number, statement in enumerate(node.body):
        if any(is_absent(name, libraries) for name in libraries_of(statement)):
            return [*node.body[number:], *node.orelse]
    return []


def _guarded(
    node: ast.AST, errors: tuple[str, ...], libraries: Container[str]
) -> Iterator[ast.AST]:
    """Yields the parts of a node that run only if their names exist."""
    if isinstance(node, ast.Try) and _handles(node, errors):
        yield from node.body
        if not _after_absent(node, libraries):
            yield from node.handlers
    elif isinstance(node, ast.If | ast.IfExp):
        test = ast.unparse(node.test)
        if "hasattr(" in test or asks_version(test):
            yield node
