"""Which functions of a program run in a step on the devices.

They are the `model_fn`s and what these call, as far as that can be followed.
What is only passed on, such as a `metric_fn`, runs on the host.
"""

import ast
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from keras_tpu_estimator.tf1_tools.check.scopes import Found
from keras_tpu_estimator.tf1_tools.check.scopes import Scope
from keras_tpu_estimator.tf1_tools.check.scopes import canonical

# Control flow, which calls the functions that it is given.
_CALLERS = (
    "tf.case",
    "tf.cond",
    "tf.contrib.tpu.repeat",
    "tf.foldl",
    "tf.map_fn",
    "tf.scan",
    "tf.while_loop",
)


def nodes_reached(program: Mapping[str, Scope], suffix: str) -> set[ast.AST]:
    """The nodes of the functions whose names end so, and of what they call.

    Args:
        program: The scopes of the modules.
        suffix: Such as "model_fn".

    Returns:
        The nodes, without those of functions that are only defined or passed
        on within them.
    """
    waiting = list(_named(program.values(), suffix))
    done: set[ast.AST] = set()
    reached: set[ast.AST] = set()
    while waiting:
        found = waiting.pop()
        if found.node in done:
            continue
        done.add(found.node)
        scope = found.scope.children[found.node]
        for inner, node in _own_nodes(scope):
            reached.add(node)
            if isinstance(node, ast.Call):
                waiting += _called(inner, node)
    return reached


def _named(modules: Iterable[Scope], suffix: str) -> Iterator[Found]:
    for module in modules:
        for scope, node in module.walk():
            if isinstance(node, ast.FunctionDef) and node.name.strip(
                "_"
            ).endswith(suffix):
                yield Found(node, scope)


def _own_nodes(scope: Scope) -> Iterator[tuple[Scope, ast.AST]]:
    """What is below a function, but for the functions defined in it."""
    waiting = [(scope, node) for node in ast.iter_child_nodes(scope.node)]
    while waiting:
        inner, node = waiting.pop()
        yield inner, node
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        inner = inner.children.get(node, inner)
        waiting += [(inner, child) for child in ast.iter_child_nodes(node)]


def _called(scope: Scope, call: ast.Call) -> Iterator[Found]:
    meaning = scope.meaning(call.func)
    if isinstance(meaning, Found):
        yield from _entry(meaning)
    elif isinstance(meaning, str) and canonical(meaning) in _CALLERS:
        values = [*call.args, *(each.value for each in call.keywords)]
        for value in values:
            passed = scope.meaning(value)
            if isinstance(passed, Found):
                yield from _entry(passed)
    elif (
        isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "self"
    ):
        yield from _method(scope, call.func.attr)


def _entry(found: Found) -> Iterator[Found]:
    """A function, or the one that makes an object of a class."""
    if isinstance(found.node, ast.ClassDef):
        inside = found.scope.children[found.node]
        yield from _methods(inside, "__init__")
    else:
        yield found


def _method(scope: Scope, name: str) -> Iterator[Found]:
    """A method of the class that the code is in."""
    outer: Scope | None = scope
    while outer is not None and not isinstance(outer.node, ast.ClassDef):
        outer = outer.parent
    if outer is not None:
        yield from _methods(outer, name)


def _methods(inside: Scope, name: str) -> Iterator[Found]:
    for node in inside.children:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            yield Found(node, inside)
