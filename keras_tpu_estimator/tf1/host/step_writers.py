"""Files that a `model_fn` writes in a step, such as `tf.compat.v2.summary`.

No device can write files. The writing operations are removed from the graph, and run on
the host for each step, with inputs that the devices compute.
"""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from keras_tpu_estimator.tf1.graph import internals
from keras_tpu_estimator.tf1.graph.definitions import (
    Body,
    Definition,
    definition_of,
    reachable,
)
from keras_tpu_estimator.tf1.graph.source_lines import line_of
from keras_tpu_estimator.tf1.host.graph_cut import Cut, part_of
from keras_tpu_estimator.tf1.host.host_graph import WRITERS
from keras_tpu_estimator.tf1.host.host_session import StepWriter
from keras_tpu_estimator.tf1.lift.effects import effects_of
from keras_tpu_estimator.tf1.lift.refusals import reason_against

_logger = logging.getLogger("keras_tpu_estimator")


def remove_writers(
    graph: Any, fetches: Sequence[Any]
) -> tuple[StepWriter, list[Any]] | None:
    """Removes the operations that write files from a graph, if the step allows it.

    It returns the function that the host calls for each step, and its tensors, one row
    for each device. Operations that the step depends on remain. If nothing was removed,
    it returns `None`.
    """
    writing = _writing(graph)
    runs = [op for op in reachable(graph, fetches) if op.name in writing]
    definition = definition_of(graph)
    fetch_names = {getattr(fetch, "op", fetch).name for fetch in fetches}
    if not runs or fetch_names & writing.keys() or _assigns(runs, definition):
        return None
    waiting = _leave_out(graph, writing)
    needed = {op.name for op in reachable(graph, fetches)}
    part = _Part.from_graph(graph, definition, writing, runs, needed)
    with graph.as_default():
        reads = [_read(handle, part) for handle in part.variables.values()]
        rows = [_row(tensor) for tensor in (*part.boundary.values(), *reads)]
    before = [_all_before(value.op) for value in reads]
    for op in waiting:
        # Variables are read when the removed operations would have read them: before
        # operations that waited for these. Some operations have waited only for the
        # writer to be opened.
        first = [
            read.op
            for read, names in zip(reads, before, strict=True)
            if op.name not in names
        ]
        internals.set_control_inputs(op, [*op.control_inputs, *first])
    return StepWriter(part.cut(definition), part.names), rows


@dataclasses.dataclass(frozen=True, eq=False)
class _Part:
    """The part of a graph that the host runs to write files.

    Attributes:
        names: The names of the operations to run.
        ops: All operations that come before these, in the order of creation.
        hosted: The names of the operations that the host runs.
        boundary: The tensors that the devices compute, by name.
        variables: The handles of the variables that are read, by name.
    """

    names: Sequence[str]
    ops: Sequence[Any]
    hosted: set[str]
    boundary: Mapping[str, Any]
    variables: Mapping[str, Any]

    @classmethod
    def from_graph(
        cls,
        graph: Any,
        definition: Definition,
        writing: Mapping[str, Any],
        runs: Sequence[Any],
        needed: set[str],
    ) -> "_Part":
        """Makes a part without operations on tensors of unknown shape.

        Args:
            writing: The operations that write, by name.
            runs: The operations that must run.
            others: The names of operations that the devices run anyway.
        """
        used = {op.name for op in runs}
        openers = [
            op
            for op in writing.values()
            if op.type in WRITERS and op.inputs[0].op.name in used
        ]
        ops = _before(graph, [*runs, *openers])
        hosted = {op.name for op in ops if op.name in writing}
        for op in ops:
            if op.name not in needed and _is_hosts(op, definition):
                hosted.add(op.name)
        _spread(ops, hosted)
        part = cls([op.name for op in runs], ops, hosted, *_around(ops, hosted))
        open_shapes = {
            tensor.op.name
            for tensor in part.boundary.values()
            if not tensor.shape.is_fully_defined()
        }
        if not open_shapes:
            return part
        lost = _after(ops, open_shapes)
        writable = [op for op in runs if op.name not in lost]
        for op in runs:
            if op.name in lost and op.type != "Identity":
                _logger.warning(
                    "The summary %s, made at %s, is not written, because its tensors "
                    "must have fixed shapes.",
                    op.name,
                    line_of(op),
                )
        return cls.from_graph(graph, definition, writing, writable, needed)

    def cut(self, definition: Definition) -> Cut:
        """Returns the part as a `Cut`."""
        return Cut(
            part_of(definition, [op.name for op in self.ops], self.hosted),
            list(self.boundary.values()),
            list(self.variables),
        )


def _writing(graph: Any) -> dict[str, Any]:
    """Returns the writers of a graph and all operations on them, by name."""
    writing: dict[str, Any] = {}
    for op in graph.get_operations():
        if op.type == "SummaryWriter" or any(
            tensor.op.name in writing for tensor in op.inputs
        ):
            writing[op.name] = op
    return writing


def _assigns(ops: Sequence[Any], definition: Definition) -> bool:
    """Returns whether operations assign variables."""
    variables = {
        tensor.op.name
        for op in ops
        for tensor in op.inputs
        if tensor.op.type == "VarHandleOp"
    }
    nodes = [definition.nodes[op.name] for op in ops]
    body = Body(nodes, [], list(variables))
    return bool(effects_of(body, definition.library).last_writes)


def _leave_out(graph: Any, writing: Mapping[str, Any]) -> list[Any]:
    """Removes waits for operations that write, and returns the changed operations.

    The changed operations wait for the control inputs of the removed ones.
    """
    before: dict[str, dict[str, Any]] = {}
    waiting = []
    for op in graph.get_operations():
        controls = op.control_inputs
        now: dict[str, Any] = {}
        for control in controls:
            now |= before.get(control.name, {control.name: control})
        if op.name in writing:
            for tensor in op.inputs:
                now |= before.get(tensor.op.name, {})
            before[op.name] = now
        elif any(control.name in writing for control in controls):
            internals.set_control_inputs(op, list(now.values()))
            waiting.append(op)
    return waiting


def _before(graph: Any, ops: Sequence[Any]) -> list[Any]:
    """Returns operations and those whose tensors they take, in order."""
    stack, needed = [*ops], set()
    while stack:
        op = stack.pop()
        if op.name not in needed:
            needed.add(op.name)
            stack += [tensor.op for tensor in op.inputs]
    return [op for op in graph.get_operations() if op.name in needed]


def _after(ops: Sequence[Any], names: set[str]) -> set[str]:
    """Returns the names of operations that depend on the tensors of some."""
    dependents = {*names}
    for op in ops:
        if any(tensor.op.name in dependents for tensor in op.inputs):
            dependents.add(op.name)
    return dependents


def _is_hosts(op: Any, definition: Definition) -> bool:
    """Returns whether the host must run an operation that only a writer needs."""
    import tensorflow as tf

    if any(tensor.dtype == tf.resource for tensor in (*op.inputs, *op.outputs)):
        return False
    if tf.DeviceSpec.from_string(op.device).device_type == "CPU":
        return True
    node = definition.nodes[op.name]
    return reason_against(op, node, definition.library) is not None


def _spread(ops: Sequence[Any], hosted: set[str]) -> None:
    """Adds operations that depend on the host's, and those that make no numbers."""
    size = 0
    while size < len(hosted):
        size = len(hosted)
        hosted |= _after(ops, hosted)
        for op in reversed(ops):
            if op.name in hosted:
                hosted |= {
                    tensor.op.name
                    for tensor in op.inputs
                    if not _is_number(tensor) and tensor.op.type != "VarHandleOp"
                }


def _is_number(tensor: Any) -> bool:
    dtype = tensor.dtype
    return bool(dtype.is_bool or dtype.is_complex or dtype.is_numeric)


def _around(
    ops: Sequence[Any], hosted: set[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Adds constants and variables to the host's operations `hosted`.

    It returns the missing tensors and the handles of variables, both by name.
    """
    constant = set[str]()
    for op in ops:
        before = {tensor.op.name for tensor in op.inputs}
        if before <= constant and not op.op_def.is_stateful:
            if not op.type.startswith("Placeholder"):
                constant.add(op.name)
    boundary, variables = {}, {}
    for op in reversed(ops):
        for tensor in op.inputs if op.name in hosted else ():
            before = tensor.op
            if before.type == "VarHandleOp":
                variables[before.name] = tensor
                hosted.add(before.name)
            elif before.name in constant:
                hosted.add(before.name)
            elif before.name not in hosted:
                boundary[tensor.name] = tensor
    return boundary, variables


def _read(handle: Any, part: _Part) -> Any:
    """Reads a variable when the host's operations would have read it."""
    import tensorflow as tf

    dtype = handle.op.get_attr("dtype")
    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    readers = [
        op
        for op in part.ops
        if op.name in part.hosted
        and any(tensor.op is handle.op for tensor in op.inputs)
    ]
    waited = _waited_for(readers, part.hosted)
    internals.set_control_inputs(value.op, waited)
    return value


def _all_before(op: Any) -> set[str]:
    """Returns the names of all operations that one waits for."""
    stack, earlier = [op], set[str]()
    while stack:
        operation = stack.pop()
        if operation.name not in earlier:
            earlier.add(operation.name)
            stack += [*operation.control_inputs, *(t.op for t in operation.inputs)]
    return earlier


def _waited_for(ops: Sequence[Any], hosted: set[str]) -> list[Any]:
    """Returns the devices' operations for which operations of the host wait."""
    stack, earlier = [*ops], dict[str, Any]()
    while stack:
        op = stack.pop()
        for operation in (*op.control_inputs, *(t.op for t in op.inputs)):
            if operation.name not in earlier and operation.type != "VarHandleOp":
                earlier[operation.name] = operation
                stack += [operation] if operation.name in hosted else []
    return [op for op in earlier.values() if op.name not in hosted]


def _row(tensor: Any) -> Any:
    """Returns a tensor as one row, because rows of devices are concatenated."""
    import tensorflow as tf

    return tf.expand_dims(tensor, 0)
