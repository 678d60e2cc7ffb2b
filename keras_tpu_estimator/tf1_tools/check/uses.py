"""Where a program uses names of TensorFlow."""

import ast
import dataclasses
import pathlib
from collections.abc import Iterator

from keras_tpu_estimator.ground.base.sources import from_module
from keras_tpu_estimator.tf1_tools.check.scopes import Scope, canonical

_GUARDS = ("AttributeError", "Exception", "ImportError", "ModuleNotFoundError")


@dataclasses.dataclass(frozen=True)
class Use:
    """A name of TensorFlow in a program, or of a library.

    Attributes:
        name: Such as "tf.layers.dense", or "gin".
        path: The file.
        line: Where it is there.
        node: The expression or import.
        scope: The scope that it is in.
        is_guarded: Whether the program does without it, if need be.
    """

    name: str
    path: pathlib.Path
    line: int
    node: ast.AST
    scope: Scope = dataclasses.field(repr=False)
    is_guarded: bool = False


@dataclasses.dataclass(frozen=True)
class Unfollowed:
    """Something that may use TensorFlow, and cannot be told from the source.

    Attributes:
        path: The file.
        line: Where it is there.
        what: The code, or what is known of it.
    """

    path: pathlib.Path
    line: int
    what: str


def uses_in(module: Scope) -> Iterator[Use | Unfollowed]:
    """All uses of TensorFlow in a module, from its first line to its last."""
    path = module.source.path
    guarded = guarded_in(module)
    parts = {
        node.value for node in ast.walk(module.node) if isinstance(node, ast.Attribute)
    }
    for scope, node in module.walk():
        if node in parts:
            continue  # Of a longer name, which says more.
        line = getattr(node, "lineno", 1)
        for name in _names(scope, node):
            if name.endswith(".*"):
                yield Unfollowed(path, line, ast.unparse(node))
            else:
                yield Use(_cut(name), path, line, node, scope, node in guarded)
        if _is_getattr(scope, node):
            yield Unfollowed(path, line, ast.unparse(node))


def guarded_in(module: Scope) -> frozenset[ast.AST]:
    """The nodes that a module runs only if it has what they use."""
    nodes = ast.walk(module.node)
    return frozenset(inner for node in nodes for inner in _guarded(node))


def _names(scope: Scope, node: ast.AST) -> Iterator[str]:
    """The names of TensorFlow that a node uses, without its children."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        module = from_module(node, scope.source)
        names = [f"{module}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
        meaning = scope.meaning(node)
        names = [meaning] if isinstance(meaning, str) else []
    else:
        return
    for name in map(canonical, names):
        if name.startswith("tf."):
            yield name


def _cut(name: str) -> str:
    """The name without what is in a class, or in a constant of a module."""
    parts = name.split(".")
    for number, part in enumerate(parts[1:], 1):
        if part.startswith("__"):
            return ".".join(parts[:number])
        if part[0].isupper():
            return ".".join(parts[: number + 1])
    return name


def _guarded(node: ast.AST) -> Iterator[ast.AST]:
    """What a node runs only if TensorFlow has what it uses."""
    if isinstance(node, ast.Try):
        handled = " ".join(
            "Exception" if each.type is None else ast.unparse(each.type)
            for each in node.handlers
        )
        if any(guard in handled for guard in _GUARDS):
            for statement in (*node.body, *node.handlers):
                yield from ast.walk(statement)
    elif isinstance(node, ast.If | ast.IfExp):
        test = ast.unparse(node.test)
        if "hasattr(" in test or "version" in test.lower():
            yield from ast.walk(node)


def _is_getattr(scope: Scope, node: ast.AST) -> bool:
    if not (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "getattr"
        and node.args
    ):
        return False
    meaning = scope.meaning(node.args[0])
    return isinstance(meaning, str) and canonical(meaning).startswith("tf")
