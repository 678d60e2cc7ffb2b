"""The meanings of names in a script, as far as they are certain.

A name has a meaning only if all of its bindings agree.
"""

import ast
import dataclasses
from collections.abc import Container, Iterator, Mapping
from typing import TypeAlias

from keras_tpu_estimator.base.common.sources import Source, from_module
from keras_tpu_estimator.tf1.names import catalogue
from keras_tpu_estimator.tf1_tools.check.guards import unreached_in

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_SCOPES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Lambda,
    ast.ClassDef,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


@dataclasses.dataclass(frozen=True)
class Imported:
    """A binding of a full name, such as "tensorflow.contrib.slim", by an import."""

    name: str


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """A function or class of the script, and the scope that contains its definition."""

    node: Definition
    scope: "Scope"


# A binding of a name. `None` is a binding that cannot be followed.
Binding: TypeAlias = Imported | Definition | ast.expr | None
Meaning: TypeAlias = str | Found | None


class Scope:
    """A module, function, class or comprehension, with bindings and inner scopes."""

    def __init__(
        self,
        node: ast.AST,
        parent: "Scope | None",
        source: Source,
        program: Mapping[str, "Scope"],
        unreached: Container[ast.AST] = (),
    ):
        self.node = node
        self.parent = parent
        self.source = source
        self.children: dict[ast.AST, Scope] = {}
        self._program = program
        self._unreached = unreached
        self._bindings: dict[str, list[Binding]] = {}
        self._elsewhere: set[str] = set()
        for argument in _arguments(node):
            self._bind(argument.arg, None)
        for child in ast.iter_child_nodes(node):
            self._visit(child)

    def walk(self) -> Iterator[tuple["Scope", ast.AST]]:
        """Yields all nodes below, each with its scope."""
        for child in ast.iter_child_nodes(self.node):
            yield from self._walk(child)

    def _walk(self, node: ast.AST) -> Iterator[tuple["Scope", ast.AST]]:
        yield self, node
        inner = self.children.get(node)
        if inner is not None:
            yield from inner.walk()
            return
        for child in ast.iter_child_nodes(node):
            yield from self._walk(child)

    def meaning(
        self, node: ast.AST, followed: frozenset[tuple["Scope", str]] = frozenset()
    ) -> Meaning:
        """Returns the full name of an import, or a definition of the script.

        Other expressions have the meaning `None`. `followed` has the names that are
        being followed, so that cycles end.
        """
        if isinstance(node, ast.Name):
            return self._of_name(node.id, followed)
        if isinstance(node, ast.Attribute):
            owner = self.meaning(node.value, followed)
            if isinstance(owner, str):
                return self._of_import(f"{owner}.{node.attr}", followed)
        return None

    def value(
        self,
        node: ast.expr,
        followed: frozenset[tuple["Scope", str]] = frozenset(),
    ) -> tuple[ast.expr, "Scope"]:
        """Follows a name to the only expression that is assigned to it.

        It returns the expression and its scope. Other nodes are returned unchanged.
        `followed` contains the names that are being followed, so that cycles end.
        """
        scope = self._owner(node.id) if isinstance(node, ast.Name) else None
        if not isinstance(node, ast.Name) or scope is None:
            return node, self
        bindings = scope._bindings[node.id]
        if len(bindings) != 1 or (scope, node.id) in followed:
            return node, self
        (binding,) = bindings
        followed = followed | {(scope, node.id)}
        if isinstance(binding, ast.expr):
            return scope.value(binding, followed)
        if isinstance(binding, Imported):
            module, name = scope._module_of(binding.name)
            if module is not None:
                return module.value(ast.Name(name, ast.Load()), followed)
        return node, self

    def _module_of(self, name: str) -> tuple["Scope | None", str]:
        """Returns the module of the script that binds an imported name."""
        module, _, attribute = name.rpartition(".")
        # Python searches the script's folder even if the folder is a package.
        for full_name in (module, f"{self.source.package}.{module}"):
            scope = self._program.get(full_name)
            if scope is not None and attribute in scope._bindings:
                return scope, attribute
        return None, attribute

    def _of_name(self, name: str, followed: frozenset[tuple["Scope", str]]) -> Meaning:
        scope = self._owner(name)
        if scope is None or (scope, name) in followed:
            return None
        followed = followed | {(scope, name)}
        meanings = [
            scope._of_binding(binding, followed) for binding in scope._bindings[name]
        ]
        first = meanings[0]
        is_same = all(
            meaning == first
            or (isinstance(meaning, str) and _is_same_import(meaning, first))
            for meaning in meanings
        )
        # The packages of tf.contrib exist here, so that no library replaces them.
        is_same = is_same or (
            _is_of_contrib(first) and all(isinstance(m, str) for m in meanings)
        )
        return first if is_same else None

    def _of_binding(
        self, binding: Binding, followed: frozenset[tuple["Scope", str]]
    ) -> Meaning:
        if isinstance(binding, Imported):
            return self._of_import(binding.name, followed)
        if isinstance(binding, Definition):
            return Found(binding, self)
        return None if binding is None else self.meaning(binding, followed)

    def _of_import(
        self, name: str, followed: frozenset[tuple["Scope", str]]
    ) -> Meaning:
        """Follows an imported name through the module of the script that binds it."""
        scope, attribute = self._module_of(name)
        return name if scope is None else scope._of_name(attribute, followed)

    def binds(self, name: str) -> bool:
        """Returns whether the module binds a name, seen from here."""
        return self._owner(name) is not None

    def imports(self, name: str) -> bool:
        """Returns whether only imports bind a name, seen from here."""
        scope = self._owner(name)
        bindings = scope._bindings[name] if scope else []
        return bool(bindings) and all(isinstance(b, Imported) for b in bindings)

    def _owner(self, name: str) -> "Scope | None":
        """Returns the scope in which a name is bound, seen from here."""
        scope: Scope | None = self
        while scope is not None:
            hides = isinstance(scope.node, ast.ClassDef) and scope is not self
            if not hides and name in scope._bindings:
                return scope
            scope = scope.parent
        return None

    def _bind(self, name: str, binding: Binding) -> None:
        scope: Scope = self
        while name in scope._elsewhere and scope.parent is not None:
            scope = scope.parent
        scope._bindings.setdefault(name, []).append(binding)

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Global | ast.Nonlocal):
            self._elsewhere.update(node.names)
        if node not in self._unreached:
            for name, binding in _bound(node, self.source):
                self._bind(name, binding)
        if isinstance(node, _SCOPES):
            self.children[node] = Scope(
                node, self, self.source, self._program, self._unreached
            )
            return
        assigned = {} if node in self._unreached else _assigned(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Name) and child in assigned:
                self._bind(child.id, assigned[child])
            else:
                self._visit(child)


def scopes_of(sources: tuple[Source, ...]) -> dict[str, Scope]:
    """Returns the scopes of a script's modules, by module name."""
    program: dict[str, Scope] = {}
    libraries = {part for source in sources for part in source.module.split(".")}
    for source in sources:
        unreached = unreached_in(source.tree, libraries)
        program[source.module] = Scope(source.tree, None, source, program, unreached)
    return program


class Families:
    """The classes of a script whose methods an object may have, by one of its classes.

    An object of a class may be of a subclass, which has the methods of its other bases.
    """

    def __init__(self, program: Mapping[str, Scope]):
        self._bases: dict[Scope, list[Scope]] = {}
        self._subclasses: dict[Scope, list[Scope]] = {}
        for module in program.values():
            for scope, node in module.walk():
                if isinstance(node, ast.ClassDef):
                    self._add(scope.children[node], bases_of(scope, node))

    def around(self, owner: Scope) -> set[Scope]:
        """Returns a class, its subclasses, and the bases of all of them."""
        return _closure(_closure({owner}, self._subclasses), self._bases)

    def _add(self, owner: Scope, bases: list[Scope]) -> None:
        self._bases[owner] = bases
        for base in bases:
            self._subclasses.setdefault(base, []).append(owner)


def bases_of(scope: Scope, node: ast.ClassDef) -> list[Scope]:
    """Returns the bases of a class that the script defines."""
    bases = [scope.meaning(base) for base in node.bases]
    return [
        base.scope.children[base.node]
        for base in bases
        if isinstance(base, Found) and isinstance(base.node, ast.ClassDef)
    ]


def _closure(first: set[Scope], following: Mapping[Scope, list[Scope]]) -> set[Scope]:
    members = {*first}
    waiting = [*first]
    while waiting:
        new = {*following.get(waiting.pop(), ())} - members
        members |= new
        waiting += new
    return members


def _bound(node: ast.AST, source: Source) -> Iterator[tuple[str, Binding]]:
    """Yields the bindings of a node, without those of its children."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.split(".")[0]
            full = alias.name if alias.asname else top
            yield alias.asname or top, Imported(full)
    elif isinstance(node, ast.ImportFrom):
        module = from_module(node, source)
        for alias in node.names:
            yield alias.asname or alias.name, Imported(f"{module}.{alias.name}")
    elif isinstance(node, Definition):
        yield node.name, node
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        if node.name:
            yield node.name, None
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id, None


def _assigned(node: ast.AST) -> dict[ast.AST, ast.expr | None]:
    """Returns the names to which a statement assigns its value unchanged."""
    if isinstance(node, ast.Assign):
        return {
            target: node.value
            for target in node.targets
            if isinstance(target, ast.Name)
        }
    if isinstance(node, ast.AnnAssign):
        return {node.target: node.value}
    return {}


def _arguments(node: ast.AST) -> list[ast.arg]:
    if not isinstance(node, Function):
        return []
    a = node.args
    optional = [argument for argument in (a.vararg, a.kwarg) if argument is not None]
    return [*a.posonlyargs, *a.args, *a.kwonlyargs, *optional]


def _is_of_contrib(meaning: Meaning) -> bool:
    """Returns whether an import or an assignment means a package of `tf.contrib`."""
    path = (catalogue.path_of(meaning) if isinstance(meaning, str) else None) or ""
    return path.startswith("contrib.") and path in catalogue.catalogue().packages


def _is_same_import(name: str, other: Meaning) -> bool:
    return isinstance(other, str) and canonical(name) == canonical(other)


def canonical(name: str) -> str:
    """Returns the name by which scripts know a TensorFlow name, and others unchanged.

    >>> canonical("tensorflow.compat.v1.nn.relu")
    'tf.nn.relu'
    """
    path = catalogue.path_of(name)
    if path is None:
        return name
    return f"tf.{path}" if path else "tf"
