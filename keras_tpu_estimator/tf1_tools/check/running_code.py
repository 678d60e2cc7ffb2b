"""What of a program runs on the host, and what in steps on the devices."""

import ast
import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping

from keras_tpu_estimator.tf1_tools.check.conditions import Condition
from keras_tpu_estimator.tf1_tools.check.conditions import condition_of
from keras_tpu_estimator.tf1_tools.check.reached import Grade
from keras_tpu_estimator.tf1_tools.check.reached import Reached
from keras_tpu_estimator.tf1_tools.check.reached import is_function
from keras_tpu_estimator.tf1_tools.check.reached import is_named
from keras_tpu_estimator.tf1_tools.check.scopes import Scope


@dataclasses.dataclass(frozen=True)
class RunningCode:
    """The nodes of a program's code that run, and how surely.

    Attributes:
        anywhere: Those that run at all.
        in_steps: Those that are part of a step.
    """

    anywhere: Mapping[ast.AST, Grade]
    in_steps: Mapping[ast.AST, Grade]

    @classmethod
    def of(
        cls, program: Mapping[str, Scope], start: Scope | None
    ) -> "RunningCode":
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
        return cls(known.grades, steps.grades)


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
        isinstance(node, ast.If)
        and condition_of(node.test) is Condition.IS_STARTED
        for node in ast.iter_child_nodes(module.node)
    )


def _functions(program: Mapping[str, Scope], *suffixes: str) -> Iterator[Scope]:
    """The functions and methods with a name that ends so."""
    for module in program.values():
        for scope, node in module.walk():
            if is_function(node) and is_named(node, *suffixes):
                yield scope.children[node]
