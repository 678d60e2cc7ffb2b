"""What of a program runs on the host, and what in steps on the devices."""

import ast
import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from keras_tpu_estimator.tf1_tools.check.conditions import Condition, condition_of
from keras_tpu_estimator.tf1_tools.check.reached import (
    Grade,
    Reached,
    is_function,
    is_named,
)
from keras_tpu_estimator.tf1_tools.check.scopes import Found, Scope, canonical

# Functions whose arguments are the bodies of branches and loops.
_BRANCHING = (
    "tf.case",
    "tf.cond",
    "tf.foldl",
    "tf.foldr",
    "tf.map_fn",
    "tf.scan",
    "tf.switch_case",
    "tf.while_loop",
)


@dataclasses.dataclass(frozen=True)
class RunningCode:
    """The nodes of a program's code that run, and how surely.

    Attributes:
        anywhere: Those that run at all.
        in_steps: Those that are part of a step.
        in_branches: Those of them that are in a branch or a loop of the graph.
        in_host_calls: Those that are part of a `host_call`.
    """

    anywhere: Mapping[ast.AST, Grade]
    in_steps: Mapping[ast.AST, Grade]
    in_branches: Mapping[ast.AST, Grade]
    in_host_calls: Mapping[ast.AST, Grade]

    @classmethod
    def of(cls, program: Mapping[str, Scope], start: Scope | None) -> "RunningCode":
        """That of a program: of the file that is run, or of all that can be."""
        entries = [start] if start else _started(program)
        known = Reached(program, entries or program.values())
        known.add(entries or program.values())
        everywhere = [*_functions(program, "")]
        if not any(_is_started(entry) for entry in entries):
            # Functions for other programs, or those of an estimator.
            named = [*_functions(program, "model_fn", "input_fn")]
            known.add(named or everywhere)
        steps = Reached(program, in_steps=True, objects=known.classes)
        model_fns = known.model_fns | {*_functions(program, "model_fn")}
        for scope in model_fns & known.bodies.keys():
            steps.add([scope])
        for scope in model_fns - known.bodies.keys():
            steps.add([scope], Grade.IN_BRANCH)
        branches = Reached(program, in_steps=True, objects=known.classes)
        for scope, grade in _branches(program, steps.grades):
            branches.add([scope], grade)
        host_calls = Reached(program, in_steps=True, objects=known.classes)
        for scope in _functions(program, "host_call", "host_call_fn"):
            grade = known.bodies.get(scope, Grade.IN_BRANCH)
            host_calls.add([scope], grade)
        return cls(known.grades, steps.grades, branches.grades, host_calls.grades)


def _started(program: Mapping[str, Scope]) -> list[Scope]:
    """The modules that can be run, without tests."""
    return [
        module
        for module in program.values()
        if _is_started(module)
        and not module.source.path.stem.startswith("test_")
        and not module.source.path.stem.endswith("_test")
    ]


def _is_started(module: Scope) -> bool:
    return any(
        isinstance(node, ast.If) and condition_of(node.test) is Condition.IS_STARTED
        for node in ast.iter_child_nodes(module.node)
    )


def _functions(program: Mapping[str, Scope], *suffixes: str) -> Iterator[Scope]:
    """The functions and methods with a name that ends so."""
    for module in program.values():
        for scope, node in module.walk():
            if is_function(node) and is_named(node, *suffixes):
                yield scope.children[node]


def _branches(
    program: Mapping[str, Scope], in_steps: Mapping[ast.AST, Grade]
) -> Iterator[tuple[Scope, Grade]]:
    """The functions that become branches and loops of a step."""
    for module in program.values():
        for scope, node in module.walk():
            if node not in in_steps or not isinstance(node, ast.Call):
                continue
            called = scope.meaning(node.func)
            if not isinstance(called, str):
                continue
            if canonical(called) in _BRANCHING:
                given = (*node.args, *(each.value for each in node.keywords))
                for function in _given_functions(scope, given):
                    yield function, in_steps[node]


def _given_functions(scope: Scope, given: Iterable[ast.expr]) -> Iterator[Scope]:
    for value in given:
        found = scope.meaning(value)
        if isinstance(value, ast.Lambda):
            yield scope.children[value]
        elif isinstance(value, ast.List | ast.Tuple):
            yield from _given_functions(scope, value.elts)
        elif isinstance(found, Found) and is_function(found.node):
            yield found.scope.children[found.node]
