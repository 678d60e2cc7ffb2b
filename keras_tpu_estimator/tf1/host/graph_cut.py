"""Cuts a graph in two: a part for the devices, and a part for the host."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from keras_tpu_estimator.tf1.graph.definitions import (
    Definition,
    add_copy,
    definition_of,
    reachable,
)
from keras_tpu_estimator.tf1.host.host_graph import HostGraph
from keras_tpu_estimator.tf1.host.ordering import Order
from keras_tpu_estimator.tf1.lift.refusals import reason_against

_VARIABLE = "VarHandleOp"
_READS = (_VARIABLE, "ReadVariableOp")


@dataclasses.dataclass(frozen=True, eq=False)
class Cut:
    """The part of a graph that the host must run.

    It contains operations that no device can run, some variables, and all that depends
    on these. It has its own copies of constants.

    Attributes:
        boundary: The tensors that the devices compute for it.
        variables: The names of its variables.
        initializers: The names of the operations that initialize its variables.
        copied: The names of variables whose values the devices have.
    """

    definition: Any = dataclasses.field(repr=False)
    boundary: Sequence[Any]
    variables: Sequence[str]
    initializers: Sequence[str] = ()
    copied: Sequence[str] = ()

    def graph(
        self, together: Sequence[str] = (), order: Order | None = None
    ) -> HostGraph:
        """Returns the part as a graph, whose inputs are the boundary.

        `order` orders the operations and tensors that run `together`, by name.
        """
        import tensorflow as tf

        graph = tf.Graph()
        with graph.as_default():
            inputs = [
                tf.compat.v1.placeholder(tensor.dtype, tensor.shape)
                for tensor in self.boundary
            ]
            used = {i for node in self.definition.node for i in node.input}
            input_map = {
                tensor.name: value
                for tensor, value in zip(self.boundary, inputs, strict=True)
                if tensor.name.removesuffix(":0") in used
            }
            tf.graph_util.import_graph_def(self.definition, input_map, name="")
        operation = graph.get_operation_by_name
        handles = {
            name: operation(name).outputs[0] for name in (*self.variables, *self.copied)
        }
        if order is not None:
            fetches = [graph.as_graph_element(name) for name in together]
            order(graph, fetches, handles.values(), inputs)
        initializers = [operation(name) for name in self.initializers]
        return HostGraph(graph, inputs, handles, initializers)


def cut(
    graph: Any,
    fetches: Sequence[Any],
    variables: Mapping[str, Any],
    more: Collection[str] = (),
) -> Cut:
    """Cuts a graph so that the fetches and some variables are on the host.

    The part of a fetch that the devices can compute must be an input of another fetch.
    `variables` are only on the host. If `more`, the names of other operations that the
    host must run, is given, the host copies the variables of the devices that its part
    reads.
    """
    initializers = {n: v.initializer for n, v in variables.items()}
    tables = table_initializers(graph, [*fetches, *initializers.values()])
    ops = reachable(graph, [*fetches, *initializers.values(), *tables])
    definition = definition_of(graph)
    nodes, library = definition.nodes, definition.library
    fetch_names = {getattr(fetch, "op", fetch).name for fetch in fetches}
    host_only = {op.name for op in ops if reason_against(op, nodes[op.name], library)}
    host_only.update(more)

    def parts() -> tuple[set[str], set[str], list[Any]]:
        """Returns the host's operations, its constants, and the boundary."""
        hosted, constant = fetch_names | variables.keys(), set[str]()
        for op in ops:
            before = _before(op)
            if before & hosted or op.name in host_only:
                hosted.add(op.name)
            elif before <= constant and (
                not op.op_def.is_stateful or (more and op.type in _READS)
            ):
                if not op.type.startswith("Placeholder"):
                    constant.add(op.name)
        hosted -= {
            op.name for op in ops if op.name in fetch_names and op.name in constant
        }
        boundary = {
            tensor.name: tensor
            for op in ops
            if op.name in hosted
            for tensor in op.inputs
            if tensor.op.name not in hosted | constant
        }
        return hosted, constant, list(boundary.values())

    hosted, constant, boundary = parts()
    sizing = _sizing(graph, boundary)
    if sizing:
        host_only |= sizing
        hosted, constant, boundary = parts()
    return Cut(
        part_of(definition, [op.name for op in ops], hosted | constant),
        boundary,
        list(initializers),
        [op.name for op in (*initializers.values(), *tables)],
        [op.name for op in ops if op.type == _VARIABLE and op.name in constant],
    )


def _sizing(graph: Any, tensors: Sequence[Any]) -> set[str]:
    """Returns the operations that make sizes of tensors depend on values, by name.

    For example, `tf.boolean_mask` contains such an operation. Devices return only
    tensors of fixed sizes. Stateful operations stay there: the host has neither their
    variables nor the keys of their random numbers.
    """
    varying = [tensor for tensor in tensors if not _is_fixed(tensor)]
    return {
        op.name
        for op in reachable(graph, varying)
        if not op.op_def.is_stateful
        and not all(map(_is_fixed, op.outputs))
        and all(map(_is_fixed, op.inputs))
    }


def _is_fixed(tensor: Any) -> bool:
    return bool(tensor.shape.is_fully_defined())


def table_initializers(graph: Any, fetches: Sequence[Any]) -> list[Any]:
    """Returns the operations that initialize the tables of what is fetched."""
    import tensorflow as tf

    v1 = tf.compat.v1
    used = {op.name for op in reachable(graph, fetches)}
    return [
        op
        for op in graph.get_collection(v1.GraphKeys.TABLE_INITIALIZERS)
        if any(tensor.op.name in used for tensor in op.inputs)
    ]


def _before(op: Any) -> set[str]:
    """Returns the names of the operations that come directly before one."""
    inputs = {tensor.op.name for tensor in op.inputs}
    return inputs | {other.name for other in op.control_inputs}


def part_of(
    definition: Definition, names: Sequence[str], included: Collection[str]
) -> Any:
    """Returns a graph of the `included` nodes, without control inputs from others."""
    import tensorflow as tf

    graph_def = definition.graph_def
    part = tf.compat.v1.GraphDef(versions=graph_def.versions)
    part.library.CopyFrom(graph_def.library)
    for name in filter(included.__contains__, names):
        node = definition.nodes[name]
        inputs = [
            reference
            for reference in node.input
            if not reference.startswith("^") or reference[1:] in included
        ]
        add_copy(part.node, node, inputs)
    return part
