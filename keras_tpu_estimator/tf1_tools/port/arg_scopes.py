"""The arguments that `arg_scope` adds to calls: `with slim.arg_scope([f], x=1):`.

In the port, each call has all of its arguments. Those of an `arg_scope` around a call
are certain, unless its function may also be called inside another one.
"""

import ast
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from keras_tpu_estimator.tf1_tools.check.reached import Reached, is_function
from keras_tpu_estimator.tf1_tools.check.scopes import (
    Families,
    Found,
    Scope,
    canonical,
)
from keras_tpu_estimator.tf1_tools.port.values import UnportableError

NAMES = ("tf.contrib.framework.arg_scope", "tf.contrib.slim.arg_scope")
# The losses of these are collected, and not a part of the layer's result.
_REGULARIZERS = ("weights_regularizer", "biases_regularizer")
_DYNAMIC = (
    "an `arg_scope` of its callers may pass arguments; pass them with the call, as "
    "keywords"
)
_UNKNOWN = "pass the arguments of each `arg_scope` around it with the call"
_REGULARIZED = (
    "add the losses of its regularizers to the loss: `scale / 2 * "
    "keras.ops.sum(keras.ops.square(v))` for each kernel `v`"
)


@dataclasses.dataclass(frozen=True, eq=False)
class ArgScope:
    """A `with` item that passes arguments to the calls of some functions.

    Attributes:
        functions: The full names of the functions, or none if the source does not
            show them.
        block: The `with` statement.
        is_named: Whether the program can open it again under a name, as with
            `with arg_scope([f]) as scope: return scope`.
    """

    call: ast.Call
    functions: frozenset[str]
    block: ast.With
    is_named: bool = False

    def concerns(self, name: str) -> bool:
        """Returns whether it may pass arguments to a function."""
        return not self.functions or name in self.functions

    @property
    def problem(self) -> str:
        """The advice for the code that replaces the scope, or an empty string."""
        if not self.functions or self.is_named:
            return _UNKNOWN
        is_regularized = any(
            keyword.arg in _REGULARIZERS and ast.unparse(keyword.value) != "None"
            for keyword in self.call.keywords
        )
        return _REGULARIZED if is_regularized else ""

    @property
    def keywords(self) -> tuple[str, ...]:
        """The arguments that each call gets."""
        names = (k.arg for k in self.call.keywords if k.arg)
        return tuple(name for name in names if name not in _REGULARIZERS)


class ArgScopes:
    """The scopes of arguments of a program."""

    def __init__(self, modules: Mapping[str, Scope]):
        self._around: dict[ast.AST, tuple[ArgScope, ...]] = {}
        self._scopes: dict[ast.Call, ArgScope] = {}
        owners: list[tuple[Scope, ArgScope]] = []
        for module in modules.values():
            for scope, node in module.walk():
                if isinstance(node, ast.With):
                    scopes = [*_arg_scopes(scope, node)]
                    owners += [(scope, arg_scope) for arg_scope in scopes]
                    for statement in node.body if scopes else ():
                        self._add(statement, scopes)
        # The scopes that may be open when a function runs, besides its own ones.
        self._dynamic: list[tuple[ArgScope, frozenset[Scope]]] = []
        families = Families(modules) if owners else None
        for scope, arg_scope in owners:
            self._scopes[arg_scope.call] = arg_scope
            reached = Reached(modules, families or Families(modules), modules.values())
            reached.add(_called(scope, arg_scope.block, modules))
            self._dynamic.append((arg_scope, frozenset(reached.bodies)))

    def at(self, call: ast.AST) -> ArgScope | None:
        """Returns the scope that a call opens in a `with` statement, if it is one."""
        return self._scopes.get(call) if isinstance(call, ast.Call) else None

    def around(self, scope: Scope, call: ast.expr, name: str) -> Sequence[ArgScope]:
        """Returns the scopes that pass arguments to a call, from the outermost.

        Raises:
            UnportableError: The source does not show all of them.
        """
        if not name.startswith("tf.contrib."):
            return []
        scopes = [s for s in self._around.get(call, ()) if s.concerns(name)]
        if any(not s.functions for s in scopes):
            raise UnportableError(_UNKNOWN)
        function = _function_around(scope)
        for arg_scope, functions in self._dynamic:
            may_be_open = function in functions or (
                arg_scope.is_named and arg_scope not in scopes
            )
            if may_be_open and arg_scope.concerns(name):
                raise UnportableError(_DYNAMIC)
        for arg_scope in scopes:
            _check_names(arg_scope)
        return scopes

    def _add(self, node: ast.AST, scopes: Sequence[ArgScope]) -> None:
        if is_function(node):
            return  # It runs where it is called.
        if isinstance(node, ast.Call):
            # Blocks are added from the outermost.
            self._around[node] = (*self._around.get(node, ()), *scopes)
        for child in ast.iter_child_nodes(node):
            self._add(child, scopes)


def _arg_scopes(scope: Scope, block: ast.With) -> Iterator[ArgScope]:
    # A scope with a name also has the arguments of those around it.
    is_named = any(
        item.optional_vars is not None and _is_arg_scope(scope, item.context_expr)
        for statement in ast.walk(block)
        if isinstance(statement, ast.With)
        for item in statement.items
    )
    for item in block.items:
        call = item.context_expr
        if isinstance(call, ast.Call) and _is_arg_scope(scope, call):
            functions = frozenset(_functions(scope, call))
            yield ArgScope(call, functions, block, is_named)


def _is_arg_scope(scope: Scope, node: ast.expr) -> bool:
    meaning = scope.meaning(node.func) if isinstance(node, ast.Call) else None
    return isinstance(meaning, str) and canonical(meaning) in NAMES


def _functions(scope: Scope, call: ast.Call) -> list[str]:
    """Returns the names of the functions that receive arguments, if all are known."""
    first = call.args[0] if len(call.args) == 1 else None
    starred = any(keyword.arg is None for keyword in call.keywords)
    if not isinstance(first, ast.List | ast.Tuple) or starred:
        return []
    meanings = [scope.meaning(element) for element in first.elts]
    names = [in_layers(canonical(m)) for m in meanings if isinstance(m, str)]
    return names if len(names) == len(meanings) else []


def in_layers(name: str) -> str:
    """Returns the name in `tf.contrib.layers` or `.framework` of a name of slim."""
    prefix, _, last = name.rpartition(".")
    if prefix not in ("tf.contrib.slim", "tf.contrib.slim.layers"):
        return name
    module = "framework" if last == "arg_scope" else "layers"
    return f"tf.contrib.{module}.{last}"


def _called(
    scope: Scope, block: ast.With, modules: Mapping[str, Scope]
) -> Iterator[Scope]:
    """Yields the functions of the program that a block may call."""
    names = set()
    for statement in block.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name | ast.Attribute):
                meaning = scope.meaning(node)
                if isinstance(meaning, Found):
                    yield meaning.scope.children[meaning.node]
                elif isinstance(node, ast.Attribute) and meaning is None:
                    names.add(node.attr)
    for module in modules.values():
        for inner, node in module.walk():
            if is_function(node) and node.name in names:
                yield inner.children[node]


def _function_around(scope: Scope) -> Scope:
    """Returns the function that contains the code of a scope."""
    while scope.parent is not None and not is_function(scope.node):
        scope = scope.parent
    return scope


def _check_names(arg_scope: ArgScope) -> None:
    """Raises an error if the body changes a name that an argument reads."""
    read = {name.id for keyword in arg_scope.call.keywords for name in _names(keyword)}
    for statement in arg_scope.block.body:
        for name in _names(statement):
            if isinstance(name.ctx, ast.Store) and name.id in read:
                raise UnportableError(f"pass `{name.id}` with the call, as a keyword")


def _names(node: ast.AST) -> Iterator[ast.Name]:
    yield from (part for part in ast.walk(node) if isinstance(part, ast.Name))
