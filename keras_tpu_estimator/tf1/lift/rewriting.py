"""The graph of a step as TensorFlow's bridge to XLA requires it.

Reads and writes of variables are in order, random ops are functions of a key, sums over
devices are all-reduces, and updates of some rows update all rows. The same holds in the
bodies of `tf.cond` and `tf.while_loop`, which become separate functions.
"""

import dataclasses
import itertools
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from keras_tpu_estimator.tf1.graph.definitions import (
    LOOPS,
    Body,
    Function,
    Library,
    Node,
    Writer,
    add_copy,
    called,
    data_inputs,
    nodes_within,
    set_inputs,
    type_number,
)
from keras_tpu_estimator.tf1.lift.effects import effects_of
from keras_tpu_estimator.tf1.lift.random_ops import KEY, is_random, make_stateless
from keras_tpu_estimator.tf1.lift.replaced_ops import replace

_NEXT = "kte_next_key"
# The gradient of a function, which TensorFlow derives from its operations.
_GRADIENT = "SymbolicGradient"
# An odd number, so that its multiples are distinct. Each loop has a different one.
_STRIDE = 0x9E3779B97F4A7C15


# The first number of nodes that a step may lack.
_MORE = 2**20


def rewritten(
    body: Body, library: Library, versions: Any, more: Collection[str] = ()
) -> Any:
    """Returns a `GraphDef` with the nodes of a step.

    It lacks the arguments and variables of the step. It refers to the key as `KEY`,
    which it lacks. The nodes in `more` do not change the random numbers of others.
    """
    import tensorflow as tf

    graph = tf.compat.v1.GraphDef(versions=versions)
    rewriter = _Rewriter(library, graph.library.function)
    rewriter.write(body, Writer(graph.node, is_function=False), more)
    return graph


def needs_key(node: Node, library: Library) -> bool:
    """Returns whether a node, or one that it calls, draws random numbers."""
    return any(is_random(inner) for inner in nodes_within(node, library))


@dataclasses.dataclass
class _Rewriter:
    """Rewrites a body to operations that XLA compiles, in the order of its effects.

    It also rewrites the functions that the body calls.

    Attributes:
        numbers: The numbers of the streams of random numbers.
        more_numbers: The same for the nodes that a step may lack.
        gradient_functions: The names of the functions that `_keep` has added.
    """

    library: Library
    functions: Any
    numbers: Iterator[int] = dataclasses.field(
        default_factory=lambda: itertools.count(1)
    )
    more_numbers: Iterator[int] = dataclasses.field(
        default_factory=lambda: itertools.count(_MORE)
    )
    gradient_functions: set[str] = dataclasses.field(default_factory=set)

    def write(self, body: Body, writer: Writer, more: Collection[str] = ()) -> None:
        """Writes the nodes of a body."""
        numbers = self.numbers
        effects = effects_of(body, self.library)
        ready = {f"^{name}" for name in (*body.arguments, *body.variables)}
        for old in body.nodes:
            self.numbers = self.more_numbers if old.name in more else numbers
            order = [f"^{n}" for n in effects.earlier.get(old.name, ())]
            # Arguments and variables are ready at the start, and are no longer nodes.
            inputs = [name for name in old.input if name not in ready]
            node = add_copy(writer.nodes, old, [*inputs, *order])
            if is_random(node):
                make_stateless(node, next(self.numbers), writer)
            elif called(node):
                self._call(node)
            elif node.op == _GRADIENT:
                self._keep(node.attr["f"].func.name)
            else:
                replace(node, writer)
        self.numbers = numbers

    def _call(self, node: Node) -> None:
        is_keyed = needs_key(node, self.library)
        functions = [self.library[callee.name] for callee in called(node)]
        for callee, function in zip(called(node), functions, strict=True):
            new = self._copy(function, is_keyed)
            callee.name = new.signature.name
            is_body = node.op in LOOPS and function is functions[-1]
            if is_keyed and is_body:
                self._return_next_key(new)
        if not is_keyed:
            return
        set_inputs(node, [*data_inputs(node), KEY])
        types = "T" if node.op in LOOPS else "Tin"
        node.attr[types].list.type.append(type_number("uint64"))
        if node.op in LOOPS and len(node.attr["output_shapes"].list.shape):
            node.attr["output_shapes"].list.shape.add().dim.add(size=1)

    def _keep(self, name: str) -> None:
        """Adds an unchanged function, from which TensorFlow derives a gradient."""
        if name in self.gradient_functions:
            return
        self.gradient_functions.add(name)
        function = self.library[name]
        self.functions.add().CopyFrom(function)
        for node in function.node_def:
            for callee in called(node):
                self._keep(callee.name)

    def _copy(self, function: Function, is_keyed: bool) -> Function:
        """Copies a function for one call, which draws separate random numbers."""
        name = f"{function.signature.name}_kte_{next(self.numbers)}"
        new = self.functions.add()
        new.CopyFrom(function)
        new.signature.name = name
        if is_keyed:
            number = type_number("uint64")
            new.signature.input_arg.add(name=KEY, type=number)
        del new.node_def[:]
        self.write(Body.from_function(function), Writer(new.node_def, is_function=True))
        return new

    def _return_next_key(self, function: Function) -> None:
        """Makes the body of a loop return a different key for the next round."""
        writer = Writer(function.node_def, is_function=True)
        stride = _STRIDE * (2 * next(self.numbers) + 1) % 2**64
        constant = writer.constant("kte_stride", np.array([stride], np.uint64))
        number = type_number("uint64")
        function.ret[_NEXT] = writer.node(
            "kte_sum", "AddV2", [KEY, constant], {"T": number}, "z"
        )
        function.signature.output_arg.add(name=_NEXT, type=number)
