"""The kinds of objects that names of a TensorFlow program refer to.

Keras gives some attributes another name for some kinds of objects: `v.name` of a
variable is `v.path`, while a tensor has no name. Kinds follow assignments, loops,
returned values, and the arguments of the program's calls.
"""

import ast
import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping

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
    LAYER = "a layer"
    UPDATE = "an operation that runs only as a part of `train_op`"
    AVERAGES = "moving averages of variables"
    PLAIN = "a number, string or other object of Python"
    UNDEFINED = "no value, or only values that depend on themselves"


# The step from an object to one of its items, whichever it is.
_ITEM = "item"
_Path = tuple[int | str, ...]
_Key = tuple[Scope, ast.AST, _Path]
_CALLS = {
    "tf.global_variables": Kind.VARIABLES,
    "tf.trainable_variables": Kind.VARIABLES,
    "tf.get_variable": Kind.VARIABLE,
    "tf.Variable": Kind.VARIABLE,
    "tf.group": Kind.UPDATE,
    "tf.no_op": Kind.UPDATE,
    "tf.shape": Kind.SHAPE,
    "tf.train.ExponentialMovingAverage": Kind.AVERAGES,
    "tf.train.get_global_step": Kind.STEP_COUNT,
    "tf.train.get_or_create_global_step": Kind.STEP_COUNT,
    "tf.train.create_global_step": Kind.STEP_COUNT,
}
# Functions that return the items of their argument.
_COPIES = ("list", "tuple", "sorted", "reversed", "set", "iter")
# Methods that objects of Python also have.
_OF_BUILTINS = {*dir(dict), *dir(list), *dir(set), *dir(str)}
# The methods of objects of a kind, and of others, that return updates.
_UPDATES: dict[Kind | None, tuple[str, ...]] = {
    Kind.AVERAGES: ("apply",),
    Kind.PLAIN: (),
}
_DEEPEST = 6


@dataclasses.dataclass(frozen=True)
class _Value:
    """A value of a name: an expression, and the way from it to the value.

    Attributes:
        lines: The lines of the loop that assigns it to its own variable, or `None`.
    """

    scope: Scope
    node: ast.expr
    path: _Path = ()
    lines: range | None = None

    @property
    def is_none(self) -> bool:
        """Whether it is the constant `None`."""
        return isinstance(self.node, ast.Constant) and self.node.value is None


class Kinds:
    """The kinds of expressions of a program."""

    def __init__(self, program: Mapping[str, Scope]):
        self._values: dict[tuple[Scope, str], list[_Value]] = {}
        self._attributes: dict[str, list[_Value]] = {}
        self._methods = _methods(program)
        self._results: dict[_Key, Kind | None] = {}
        self._settled: set[_Key] = set()
        self._visited: set[_Key] = set()
        self._is_settled = False
        for module in program.values():
            for scope, node in module.walk():
                self._read(scope, node)

    def kind(self, scope: Scope, node: ast.AST, path: _Path = ()) -> Kind | None:
        """Returns the kind of an expression, or `None` if it is not certain.

        Values may depend on themselves, as in loops. Then the other values decide: all
        are evaluated until no result changes.
        """
        self._is_settled = False
        while not self._is_settled:
            self._is_settled = True
            self._visited.clear()
            result = self._kind(scope, node, path)
        self._settled |= self._visited
        return None if result is Kind.UNDEFINED else result

    def _read(self, scope: Scope, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(scope, target, _Value(scope, node.value))
        elif isinstance(node, ast.AnnAssign) and node.value:
            self._assign(scope, node.target, _Value(scope, node.value))
        elif isinstance(node, ast.For):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            value = _Value(scope, node.iter, (_ITEM,), lines)
            self._assign(scope, node.target, value)
        elif isinstance(node, ast.comprehension):
            self._assign(scope, node.target, _Value(scope, node.iter, (_ITEM,)))
        elif isinstance(node, ast.Call):
            self._pass(scope, node)

    def _assign(self, owner: Scope, target: ast.expr, value: _Value) -> None:
        if isinstance(target, ast.Name):
            self._values.setdefault((owner, target.id), []).append(value)
        elif isinstance(target, ast.Attribute):
            self._attributes.setdefault(target.attr, []).append(value)
        elif isinstance(target, ast.Tuple | ast.List):
            for number, element in enumerate(target.elts):
                part = dataclasses.replace(value, path=(*value.path, number))
                self._assign(owner, element, part)

    def _pass(self, scope: Scope, call: ast.Call) -> None:
        """Records the arguments of a call as values of parameters."""
        for inner, skipped in self._callees(scope, call):
            names = _parameters(inner.node)[skipped:]
            positional = zip(names, call.args, strict=False)
            keywords = ((k.arg, k.value) for k in call.keywords if k.arg)
            for name, node in (*positional, *keywords):
                if not isinstance(node, ast.Starred):
                    values = self._values.setdefault((inner, name), [])
                    values.append(_Value(scope, node))

    def _callees(self, scope: Scope, call: ast.Call) -> Iterable[tuple[Scope, int]]:
        """Yields the functions that a call may run, and their bound arguments."""
        callee = scope.meaning(call.func)
        if isinstance(callee, Found):
            inner = callee.scope.children[callee.node]
            if is_function(callee.node):
                yield inner, 0
            else:
                yield from (
                    (m, 1)
                    for m in self._methods.get("__init__", ())
                    if m.parent is inner
                )
        elif callee is None and isinstance(call.func, ast.Attribute):
            yield from ((m, 1) for m in self._methods.get(call.func.attr, ()))

    def _kind(self, scope: Scope, node: ast.AST, path: _Path) -> Kind | None:
        key = (scope, node, path)
        if key not in self._settled and key not in self._visited:
            self._visited.add(key)
            before = self._results.setdefault(key, Kind.UNDEFINED)
            is_followed = len(path) <= _DEEPEST
            result = self._followed(scope, node, path) if is_followed else None
            self._is_settled &= result is before
            self._results[key] = result
        return self._results[key]

    def _followed(self, scope: Scope, node: ast.AST, path: _Path) -> Kind | None:
        if isinstance(node, ast.Name):
            return self._of_name(scope, node, path)
        if isinstance(node, ast.Constant | ast.JoinedStr):
            return Kind.PLAIN
        if isinstance(node, ast.Attribute):
            return self._of_attribute(scope, node, path)
        if isinstance(node, ast.Call):
            return self._of_call(scope, node, path)
        if isinstance(node, ast.Tuple | ast.List):
            return self._of_sequence(scope, node, path)
        if isinstance(node, ast.ListComp | ast.GeneratorExp) and path:
            return self._kind(scope.children[node], node.elt, path[1:])
        return self._of_operation(scope, node, path)

    def _of_operation(self, scope: Scope, node: ast.AST, path: _Path) -> Kind | None:
        if isinstance(node, ast.Subscript):
            owner = self._kind(scope, node.value, path)
            return owner if isinstance(node.slice, ast.Slice) else _item(owner)
        if isinstance(node, ast.BinOp):
            operands = (node.left, node.right)
            return _combined(self._kind(scope, part, path) for part in operands)
        if isinstance(node, ast.UnaryOp):
            return self._kind(scope, node.operand, path)
        if isinstance(node, ast.BoolOp):
            return _common(self._kind(scope, value, path) for value in node.values)
        if isinstance(node, ast.Compare):
            return self._of_comparison(scope, node)
        if isinstance(node, ast.IfExp):
            branches = (node.body, node.orelse)
            return _common(self._kind(scope, part, path) for part in branches)
        return None

    def _of_comparison(self, scope: Scope, node: ast.Compare) -> Kind | None:
        """Returns the kind of `mode == tf.estimator.ModeKeys.TRAIN`, or of sizes."""
        operands = (node.left, *node.comparators)
        names = [scope.meaning(operand) for operand in operands]
        if any(isinstance(name, str) and ".ModeKeys." in name for name in names):
            return Kind.PLAIN
        kinds = {self._kind(scope, operand, ()) for operand in operands}
        if Kind.UNDEFINED in kinds:
            return Kind.UNDEFINED
        return Kind.PLAIN if kinds <= {Kind.PLAIN, Kind.SIZE} else None

    def _of_name(self, scope: Scope, node: ast.Name, path: _Path) -> Kind | None:
        current: Scope | None = scope
        while current is not None:
            values = self._values.get((current, node.id))
            if values:
                return self._of_values(_at_line(values, node.lineno), path)
            current = current.parent
        return None

    def _of_values(self, values: Iterable[_Value], path: _Path) -> Kind | None:
        return _common(
            self._kind(value.scope, value.node, (*value.path, *path))
            for value in values
            if not value.is_none
        )

    def _of_sequence(
        self, scope: Scope, node: ast.Tuple | ast.List, path: _Path
    ) -> Kind | None:
        if not path:
            return Kind.PLAIN
        first, *below = path
        if isinstance(first, int) and first < len(node.elts):
            return self._kind(scope, node.elts[first], (*below,))
        return _common(self._kind(scope, element, (*below,)) for element in node.elts)

    def _of_attribute(
        self, scope: Scope, node: ast.Attribute, path: _Path
    ) -> Kind | None:
        if node.attr == "shape":
            return _along(Kind.SHAPE, path)
        values = self._attributes.get(node.attr, [])
        if isinstance(node.value, ast.Name) and node.value.id == "self" and values:
            return self._of_values(values, path)
        return None

    def _of_call(self, scope: Scope, node: ast.Call, path: _Path) -> Kind | None:
        callee = scope.meaning(node.func)
        if isinstance(callee, Found):
            return self._returned(callee, path)
        if isinstance(callee, str):
            name = canonical(callee)
            if name.startswith("tf."):
                return _along(_of_tensorflow(name), path)
        if self._kind(scope, node.func, ()) is Kind.LAYER:
            return _along(Kind.TENSOR, path)
        if isinstance(node.func, ast.Name) and node.args:
            return self._of_builtin(scope, node, node.func.id, path)
        if isinstance(node.func, ast.Attribute):
            if node.func.attr in ("get_shape", "as_list"):
                return _along(Kind.SHAPE, path)
            if node.func.attr in _OF_BUILTINS:
                return None
            owner = self._kind(scope, node.func.value, ())
            if node.func.attr in _UPDATES.get(owner, ("apply_gradients", "minimize")):
                return Kind.UPDATE
            methods = self._methods.get(node.func.attr, ())
            return _common(self._result(method, path) for method in methods)
        return None

    def _of_builtin(
        self, scope: Scope, node: ast.Call, name: str, path: _Path
    ) -> Kind | None:
        if name in _COPIES:
            return self._kind(scope, node.args[0], path)
        if name == "zip" and len(path) > 1 and isinstance(path[1], int):
            if path[1] < len(node.args):
                part = node.args[path[1]]
                return self._kind(scope, part, (_ITEM, *path[2:]))
        if name == "enumerate" and len(path) > 1 and path[1] == 1:
            return self._kind(scope, node.args[0], (_ITEM, *path[2:]))
        if name in ("len", "int", "float", "str"):
            return Kind.PLAIN
        return None

    @staticmethod
    def _instance(scope: Scope) -> Kind | None:
        """Returns the kind of an instance of a class of the program."""
        kinds: set[Kind | None] = set()
        for base in _bases(scope):
            name = canonical(base) if isinstance(base, str) else ""
            kinds.add(_of_tensorflow(name) if name.startswith("tf.") else None)
        return kinds.pop() if len(kinds) == 1 else None if kinds else Kind.PLAIN

    def _returned(self, function: Found, path: _Path) -> Kind | None:
        inner = function.scope.children[function.node]
        if not is_function(function.node):
            return self._instance(inner) if not path else None
        return self._result(inner, path)

    def _result(self, inner: Scope, path: _Path) -> Kind | None:
        """Returns the kind of what a function returns."""
        values = [
            (scope, node.value)
            for scope, node in inner.walk()
            if isinstance(node, ast.Return) and node.value and scope is inner
        ]
        return _common(self._kind(scope, value, path) for scope, value in values)


def _bases(scope: Scope) -> Iterator[object]:
    """Yields the classes that a class extends, and those that these extend."""
    if not isinstance(scope.node, ast.ClassDef) or scope.parent is None:
        return
    for base in scope.node.bases:
        if isinstance(base, ast.Name) and base.id == "object":
            continue
        meaning = scope.parent.meaning(base)
        if isinstance(meaning, Found):
            yield from _bases(meaning.scope.children[meaning.node])
        else:
            yield meaning


def _parameters(node: ast.AST) -> list[str]:
    """Returns the names of the parameters of a function."""
    return [argument.arg for argument in node.args.args] if is_function(node) else []


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
    if name in ("tf.keras.Model", "tf.keras.Sequential"):
        return Kind.LAYER
    if name.startswith(("tf.layers.", "tf.keras.layers.")):
        is_class = name.rpartition(".")[2][:1].isupper()
        return Kind.LAYER if is_class else Kind.TENSOR
    if name.startswith("tf.train.") or ".opt." in name:
        return Kind.OPTIMIZER if name.endswith("Optimizer") else Kind.TENSOR
    is_plain = name.startswith(
        ("tf.contrib.tpu.", "tf.data.", "tf.estimator.", "tf.gfile.", "tf.tpu.")
    )
    return None if is_plain else Kind.TENSOR


def _at_line(values: Iterable[_Value], line: int) -> list[_Value]:
    """Returns the values that a name may have at a line.

    In a loop over the name, these are the loop's and those that are assigned in it.
    """
    loops = [v.lines for v in values if v.lines is not None and line in v.lines]
    if not loops:
        return [*values]
    innermost = min(loops, key=len)
    return [
        value
        for value in values
        if value.lines == innermost
        or (value.lines is None and value.node.lineno in innermost)
    ]


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
    if len(different) > 1:
        different.discard(Kind.UNDEFINED)
    return different.pop() if len(different) == 1 else None


def _combined(kinds: Iterable[Kind | None]) -> Kind | None:
    """Returns the kind of a result of operands."""
    different = {*kinds}
    if Kind.VARIABLES in different:
        return Kind.VARIABLES  # Lists that follow each other.
    if different & {Kind.TENSOR, Kind.VARIABLE, Kind.STEP_COUNT}:
        return Kind.TENSOR
    if Kind.UNDEFINED in different:
        return Kind.UNDEFINED
    return different.pop() if len(different) == 1 else None
