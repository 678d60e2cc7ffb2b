"""The kinds of objects that names of a TensorFlow program refer to.

Keras gives some attributes another name for some kinds of objects: `v.name` of a
variable is `v.path`, while a tensor has no name. Kinds follow assignments, loops,
returned values, and the arguments of the program's calls.
"""

import ast
import enum
from collections.abc import Iterable, Mapping

from keras_tpu_estimator.tf1_tools.check.reached import is_function
from keras_tpu_estimator.tf1_tools.check.scopes import Found, Scope, canonical


class Kind(enum.Enum):
    """What an expression refers to."""

    STEP_COUNT = "the global step"
    VARIABLE = "a variable"
    VARIABLES = "variables"
    TENSOR = "a tensor"
    SHAPE = "a shape"
    SIZE = "a size of a shape"
    OPTIMIZER = "an optimizer of TensorFlow"
    PLAIN = "a number, string or other object of Python"


# The step from an object to one of its items, whichever it is.
_ITEM = "item"
_Path = tuple[int | str, ...]
_CALLS = {
    "tf.global_variables": Kind.VARIABLES,
    "tf.trainable_variables": Kind.VARIABLES,
    "tf.get_variable": Kind.VARIABLE,
    "tf.Variable": Kind.VARIABLE,
    "tf.shape": Kind.SHAPE,
    "tf.train.get_global_step": Kind.STEP_COUNT,
    "tf.train.get_or_create_global_step": Kind.STEP_COUNT,
    "tf.train.create_global_step": Kind.STEP_COUNT,
}
# Functions that return the items of their argument.
_COPIES = ("list", "tuple", "sorted", "reversed", "set", "iter")
_DEEPEST = 30


class Kinds:
    """The kinds of expressions of a program."""

    def __init__(self, program: Mapping[str, Scope]):
        self._values: dict[tuple[Scope, str], list[tuple[Scope, ast.expr, _Path]]] = {}
        self._attributes: dict[str, list[tuple[Scope, ast.expr, _Path]]] = {}
        self._methods = _methods(program)
        for module in program.values():
            for scope, node in module.walk():
                self._read(scope, node)

    def kind(self, scope: Scope, node: ast.AST, path: _Path = ()) -> Kind | None:
        """Returns the kind of an expression, or `None` if it is not certain."""
        return self._kind(scope, node, path, 0)

    def _read(self, scope: Scope, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(scope, target, scope, node.value, ())
        elif isinstance(node, ast.AnnAssign) and node.value:
            self._assign(scope, node.target, scope, node.value, ())
        elif isinstance(node, ast.For | ast.comprehension):
            self._assign(scope, node.target, scope, node.iter, (_ITEM,))
        elif isinstance(node, ast.Call):
            self._pass(scope, node)

    def _assign(
        self,
        owner: Scope,
        target: ast.expr,
        scope: Scope,
        value: ast.expr,
        path: _Path,
    ) -> None:
        if isinstance(target, ast.Name):
            place = self._values.setdefault((owner, target.id), [])
            place.append((scope, value, path))
        elif isinstance(target, ast.Attribute):
            place = self._attributes.setdefault(target.attr, [])
            place.append((scope, value, path))
        elif isinstance(target, ast.Tuple | ast.List):
            for number, element in enumerate(target.elts):
                self._assign(owner, element, scope, value, (*path, number))

    def _pass(self, scope: Scope, call: ast.Call) -> None:
        """Records the arguments of a call as values of parameters."""
        for inner, skipped in self._callees(scope, call):
            assert is_function(inner.node)
            names = [argument.arg for argument in inner.node.args.args][skipped:]
            positional = zip(names, call.args, strict=False)
            keywords = ((k.arg, k.value) for k in call.keywords if k.arg)
            for name, value in (*positional, *keywords):
                if not isinstance(value, ast.Starred):
                    place = self._values.setdefault((inner, name), [])
                    place.append((scope, value, ()))

    def _callees(self, scope: Scope, call: ast.Call) -> Iterable[tuple[Scope, int]]:
        """Yields the functions that a call may run, and how many arguments are bound."""
        callee = scope.meaning(call.func)
        if isinstance(callee, Found):
            inner = callee.scope.children[callee.node]
            if is_function(callee.node):
                yield inner, 0
            else:
                yield from ((m, 1) for m in self._methods.get("__init__", ())
                            if m.parent is inner)
        elif callee is None and isinstance(call.func, ast.Attribute):
            yield from ((m, 1) for m in self._methods.get(call.func.attr, ()))

    def _kind(
        self, scope: Scope, node: ast.AST, path: _Path, depth: int
    ) -> Kind | None:
        if depth > _DEEPEST:
            return None
        depth += 1
        if isinstance(node, ast.Name):
            return self._of_name(scope, node.id, path, depth)
        if isinstance(node, ast.Constant | ast.JoinedStr):
            return Kind.PLAIN
        if isinstance(node, ast.Attribute):
            return self._of_attribute(scope, node, path, depth)
        if isinstance(node, ast.Call):
            return self._of_call(scope, node, path, depth)
        if isinstance(node, ast.Subscript):
            whole = self._kind(scope, node.value, path, depth)
            if isinstance(node.slice, ast.Slice):
                return whole
            return _item(whole)
        if isinstance(node, ast.Tuple | ast.List):
            return self._of_sequence(scope, node, path, depth)
        if isinstance(node, ast.ListComp | ast.GeneratorExp) and path:
            return self._kind(scope.children[node], node.elt, path[1:], depth)
        if isinstance(node, ast.BinOp):
            return _combined(
                self._kind(scope, part, path, depth) for part in (node.left, node.right)
            )
        if isinstance(node, ast.UnaryOp):
            return self._kind(scope, node.operand, path, depth)
        if isinstance(node, ast.IfExp):
            kinds = (
                self._kind(scope, part, path, depth) for part in (node.body, node.orelse)
            )
            return _common(kinds)
        return None

    def _of_name(
        self, scope: Scope, name: str, path: _Path, depth: int
    ) -> Kind | None:
        current: Scope | None = scope
        while current is not None:
            values = self._values.get((current, name))
            if values:
                return _common(
                    self._kind(inner, value, (*way, *path), depth)
                    for inner, value, way in values
                    if not _is_none(value)
                )
            current = current.parent
        return None

    def _of_sequence(
        self, scope: Scope, node: ast.Tuple | ast.List, path: _Path, depth: int
    ) -> Kind | None:
        if not path:
            return Kind.PLAIN
        first, *below = path
        if isinstance(first, int) and first < len(node.elts):
            return self._kind(scope, node.elts[first], (*below,), depth)
        return _common(
            self._kind(scope, element, (*below,), depth) for element in node.elts
        )

    def _of_attribute(
        self, scope: Scope, node: ast.Attribute, path: _Path, depth: int
    ) -> Kind | None:
        if node.attr == "shape":
            return _along(Kind.SHAPE, path)
        values = self._attributes.get(node.attr, [])
        if isinstance(node.value, ast.Name) and node.value.id == "self" and values:
            return _common(
                self._kind(inner, value, (*way, *path), depth)
                for inner, value, way in values
                if not _is_none(value)
            )
        return None

    def _of_call(
        self, scope: Scope, node: ast.Call, path: _Path, depth: int
    ) -> Kind | None:
        callee = scope.meaning(node.func)
        if isinstance(callee, Found):
            return self._returned(callee, path, depth)
        if isinstance(callee, str):
            name = canonical(callee)
            if name.startswith("tf."):
                return _along(_of_tensorflow(name), path)
        if isinstance(node.func, ast.Name) and node.args:
            return self._of_builtin(scope, node, node.func.id, path, depth)
        if isinstance(node.func, ast.Attribute):
            if node.func.attr in ("get_shape", "as_list"):
                return _along(Kind.SHAPE, path)
        return None

    def _of_builtin(
        self, scope: Scope, node: ast.Call, name: str, path: _Path, depth: int
    ) -> Kind | None:
        if name in _COPIES:
            return self._kind(scope, node.args[0], path, depth)
        if name == "zip" and len(path) > 1 and isinstance(path[1], int):
            if path[1] < len(node.args):
                part = node.args[path[1]]
                return self._kind(scope, part, (_ITEM, *path[2:]), depth)
        if name == "enumerate" and len(path) > 1 and path[1] == 1:
            return self._kind(scope, node.args[0], (_ITEM, *path[2:]), depth)
        if name in ("len", "int", "float", "str"):
            return Kind.PLAIN
        return None

    def _returned(self, function: Found, path: _Path, depth: int) -> Kind | None:
        inner = function.scope.children[function.node]
        if not is_function(function.node):
            return None
        values = [
            (scope, node.value)
            for scope, node in inner.walk()
            if isinstance(node, ast.Return) and node.value and scope is inner
        ]
        return _common(self._kind(scope, value, path, depth) for scope, value in values)


def _methods(program: Mapping[str, Scope]) -> dict[str, list[Scope]]:
    """Returns the methods of a program, by name."""
    methods: dict[str, list[Scope]] = {}
    for module in program.values():
        for scope, node in module.walk():
            if is_function(node) and isinstance(scope.node, ast.ClassDef):
                methods.setdefault(node.name, []).append(scope.children[node])
    return methods


def _of_tensorflow(name: str) -> Kind | None:
    if name in _CALLS:
        return _CALLS[name]
    if name.startswith("tf.train.") or ".opt." in name:
        return Kind.OPTIMIZER if name.endswith("Optimizer") else Kind.TENSOR
    is_plain = name.startswith(
        ("tf.contrib.tpu.", "tf.data.", "tf.estimator.", "tf.gfile.", "tf.tpu.")
    )
    return None if is_plain else Kind.TENSOR


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _item(kind: Kind | None) -> Kind | None:
    """Returns the kind of an item of an object."""
    if kind is Kind.VARIABLES:
        return Kind.VARIABLE
    return Kind.SIZE if kind is Kind.SHAPE else kind


def _along(kind: Kind | None, path: _Path) -> Kind | None:
    for _ in path:
        kind = _item(kind)
    return kind


def _common(kinds: Iterable[Kind | None]) -> Kind | None:
    """Returns the kind that all have, or `None`."""
    different = {*kinds}
    return different.pop() if len(different) == 1 else None


def _combined(kinds: Iterable[Kind | None]) -> Kind | None:
    """Returns the kind of a result of operands."""
    different = {*kinds}
    if different & {Kind.TENSOR, Kind.VARIABLE, Kind.STEP_COUNT}:
        return Kind.TENSOR
    return different.pop() if len(different) == 1 else None
