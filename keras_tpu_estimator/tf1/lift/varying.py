"""Values that differ between devices: those of a batch, or random numbers.

A sum over all devices is the same on each of them.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from keras_tpu_estimator.tf1.graph.definitions import (
    LOOPS,
    Body,
    Function,
    Library,
    Node,
    called,
    data_inputs,
    first_argument,
    nodes_within,
)
from keras_tpu_estimator.tf1.lift.effects import Effects, effects_of, written
from keras_tpu_estimator.tf1.lift.random_ops import is_random
from keras_tpu_estimator.tf1.lift.replaced_ops import SUM, is_total


@dataclasses.dataclass(frozen=True)
class Varying:
    """The tensors and variables whose values differ between devices.

    They depend on inputs that are split, or on random numbers.

    Attributes:
        variables: The variables whose values differ after the step.
        sums: The names of branches and loops with a sum over all devices that some
            devices may run more often than others.
    """

    variables: frozenset[str]
    sums: tuple[str, ...]

    @classmethod
    def from_body(cls, body: Body, library: Library, is_split: bool) -> "Varying":
        """Finds the values of a step that differ."""
        walk = _Walk(library, set(body.arguments) if is_split else set())
        walk.follow(body, effects_of(body, library))
        return cls(frozenset(walk.assigned), tuple(walk.sums))


@dataclasses.dataclass
class _Walk:
    """Follows differing values from the inputs of a body to all that depend on them.

    Attributes:
        differing: Nodes of which all outputs differ, arguments and variables.
        outputs: By the name of a calling node, whether each output differs.
        assigned: The variables that were assigned differing values.
        sums: Branches and loops with a sum that devices may run differently.
    """

    library: Library
    differing: set[str]
    outputs: dict[str, list[bool]] = dataclasses.field(default_factory=dict)
    assigned: set[str] = dataclasses.field(default_factory=set)
    sums: list[str] = dataclasses.field(default_factory=list)

    def follow(self, body: Body, effects: Effects) -> None:
        """Follows differing values through all nodes."""
        nodes = {node.name: node for node in body.nodes}
        for node in body.nodes:
            inputs = [self.has(reference) for reference in data_inputs(node)]
            used = effects.used.get(node.name, [])
            for position, variable in used:
                inputs[position] = variable in self.differing
            changed = self._enter(node, inputs, nodes)
            names = {p: variable for p, variable in used if p in changed}
            for position in written(node, names, self.library):
                self.differing.add(names[position])
                self.assigned.add(names[position])

    def has(self, reference: str) -> bool:
        """Returns whether an output or an argument differs."""
        name, *suffix = reference.split(":")
        if name not in self.outputs:
            return name in self.differing
        return self.outputs[name][int(suffix[-1]) if suffix else 0]

    def _enter(
        self, node: Node, inputs: list[bool], nodes: Mapping[str, Node]
    ) -> set[int]:
        """Enters a node, and returns the inputs that it may make differ."""
        functions = [self.library[callee.name] for callee in called(node)]
        if not functions:
            differs = any(inputs) and not is_total(node, nodes)
            if not differs and not is_random(node):
                return set()
            self.differing.add(node.name)
            return set(range(len(inputs)))
        offset = first_argument(node)
        path_differs, arguments = any(inputs[:offset]), inputs[offset:]
        before = len(self.sums)
        if node.op in LOOPS:
            outputs, assigned, path_differs = self._loop(functions, arguments)
        else:
            outputs, assigned = self._any(functions, arguments)
        if path_differs:
            # Devices that take different paths get different values.
            outputs, assigned = [True] * len(outputs), set(range(len(inputs)))
        if path_differs and _has_total(node, self.library):
            self.sums.append(node.name)
        if len(self.sums) > before:
            # Names inside functions are not names of the graph.
            self.sums[before:] = [node.name]
        self.outputs[node.name] = outputs
        return {offset + position for position in assigned}

    def _any(
        self, functions: Sequence[Function], arguments: list[bool]
    ) -> tuple[list[bool], set[int]]:
        results = [self._call(function, arguments) for function in functions]
        outputs = [any(o) for o in zip(*(c[0] for c in results), strict=True)]
        return outputs, set().union(*(c[1] for c in results))

    def _loop(
        self, functions: Sequence[Function], arguments: list[bool]
    ) -> tuple[list[bool], set[int], bool]:
        """Returns the differing values of a loop, and whether the rounds differ."""
        condition, body = functions
        while True:
            outputs, assigned = self._call(body, arguments)
            if any(self._call(condition, arguments)[0]):
                return outputs, assigned, True
            after = [
                before or output or position in assigned
                for position, (before, output) in enumerate(
                    zip(arguments, outputs, strict=True)
                )
            ]
            if after == arguments:
                return arguments, assigned, False
            arguments = after

    def _call(
        self, function: Function, arguments: list[bool]
    ) -> tuple[list[bool], set[int]]:
        """Returns the outputs that differ, and the arguments made to differ."""
        signature, body = function.signature, Body.from_function(function)
        names = [argument.name for argument in signature.input_arg]
        differing = {n for n, d in zip(names, arguments, strict=True) if d}
        inner = _Walk(self.library, differing)
        inner.follow(body, effects_of(body, self.library))
        self.sums += inner.sums
        outputs = [inner.has(function.ret[o.name]) for o in signature.output_arg]
        return outputs, {names.index(name) for name in inner.assigned}


def _has_total(node: Node, library: Library) -> bool:
    """Returns whether a branch or loop contains a sum over all devices."""
    return any(inner.op == SUM for inner in nodes_within(node, library))
