"""The parts of a program: steps become Keras code, and inputs stay TensorFlow's."""

import ast
import dataclasses
import enum
import functools
from collections.abc import Iterator, Mapping

from keras_tpu_estimator.tf1_tools.check.reached import (
    Reached,
    is_function,
    is_named,
)
from keras_tpu_estimator.tf1_tools.check.scopes import Families, Scope, canonical

_INPUTS = ("input_fn", "receiver_fn")
_OF_INPUTS = (
    "tf.FixedLenFeature",
    "tf.VarLenFeature",
    "tf.data.",
    "tf.decode_",
    "tf.io.",
    "tf.parse_",
)


class Region(enum.Enum):
    """The part of a program that a piece of code belongs to.

    Attributes:
        STEP: A `model_fn` and what it calls, with metrics and host calls.
        INPUT: An `input_fn` and what it calls.
        BOTH: Both of these call it.
        SCRIPT: Other code, such as `main`.
    """

    STEP = "step"
    INPUT = "input"
    BOTH = "both"
    SCRIPT = "script"


@dataclasses.dataclass(frozen=True)
class Regions:
    """The regions of the functions of a program.

    Attributes:
        steps: The functions that a step calls.
        inputs: The functions that an input calls.
        scripts: Modules, and the functions that run before the estimator.
    """

    steps: frozenset[Scope]
    inputs: frozenset[Scope]
    scripts: frozenset[Scope]

    @classmethod
    def from_program(cls, program: Mapping[str, Scope]) -> "Regions":
        """Follows the calls of each `model_fn`, each `input_fn` and each module."""
        families = Families(program)
        everywhere = Reached(program, families, program.values())
        everywhere.add(program.values())
        functions = [*_functions(program)]
        inputs = {scope for scope in functions if is_named(scope.node, *_INPUTS)}
        model_fns = everywhere.model_fns | {
            scope for scope in functions if is_named(scope.node, "model_fn")
        }
        hosts = {
            scope
            for scope in functions
            if is_named(scope.node, "metric_fn", "host_call_fn", "host_call")
        }
        steps = Reached(program, families, objects=everywhere.classes)
        steps.add(model_fns | hosts)
        reading = Reached(program, families)
        reading.add(inputs)
        reached_steps = {*steps.bodies} - inputs
        return cls(
            frozenset(reached_steps),
            frozenset({*reading.bodies} - model_fns),
            frozenset({*everywhere.bodies} - reached_steps - {*reading.bodies}),
        )

    def region(self, scope: Scope) -> Region:
        """Returns the region of the code in a scope."""
        outermost: Scope | None = None
        current: Scope | None = scope
        while current is not None and current.parent is not None:
            for region, functions in (
                (Region.BOTH, self.steps & self.inputs),
                (Region.STEP, self.steps),
                (Region.INPUT, self.inputs),
                (Region.SCRIPT, self.scripts),
            ):
                if current in functions:
                    return region
            outermost, current = current, current.parent
        if outermost is None:
            return Region.SCRIPT
        # Nothing calls it by its name, such as a method of a chosen module.
        return Region.INPUT if _reads_data(outermost) else Region.STEP


@functools.cache
def _reads_data(scope: Scope) -> bool:
    """Returns whether a function or class uses names of inputs."""
    return any(
        canonical(meaning).startswith(_OF_INPUTS)
        for inner, node in scope.walk()
        if isinstance(node, ast.Attribute)
        and isinstance(meaning := inner.meaning(node), str)
    )


def _functions(program: Mapping[str, Scope]) -> Iterator[Scope]:
    for module in program.values():
        for scope, node in module.walk():
            if is_function(node):
                yield scope.children[node]
