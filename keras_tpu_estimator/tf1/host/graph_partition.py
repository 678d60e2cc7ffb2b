"""Partition of a graph into a part for the host and one for the devices.

The host runs operations on strings, tables and sparse tensors that need no
variables. From the first dense tensors of numbers on, the devices continue.
"""

import dataclasses
import functools
from collections.abc import Collection, Sequence
from typing import Any

from keras_tpu_estimator.tf1.graph.definitions import definition_of, reachable
from keras_tpu_estimator.tf1.graph.lookups import borders_of
from keras_tpu_estimator.tf1.graph.sparse_features import SHAPE_NAME
from keras_tpu_estimator.tf1.host.host_sizes import (
    OF_SHAPES,
    SizeUse,
    needs_sizes,
    sizes_of_values,
    without_assertions,
)
from keras_tpu_estimator.tf1.lift.refusals import reason_against

# Stateful operations that give the same results for the same inputs.
_REPEATABLE = ("HashTable", "LookupTable", "InitializeTable", "PyFunc", "EagerPyFunc")
_AS_CHECKS = ("Assert", "Print", "PrintV2")


@dataclasses.dataclass(frozen=True, eq=False)
class HostSplit:
    """The host's part of a graph, and the operations `ops` that the devices run.

    Attributes:
        tensors: The tensors that the devices receive.
        sizes: The sizes that the host computes, with the operations that need them.
        hosted: The names of the operations that the host runs.
    """

    tensors: Sequence[Any]
    sizes: Sequence[SizeUse]
    hosted: Collection[str]
    ops: Sequence[Any]


def split(
    graph: Any,
    inputs: Sequence[Any],
    fetches: Sequence[Any],
    rows: int,
) -> HostSplit:
    """Splits a graph whose `inputs` are fed for a batch of `rows` rows."""
    ops = reachable(graph, fetches)
    hosted, free = _host_operations(graph, ops, inputs, rows)
    fed = {tensor.op.name for tensor in inputs}
    sizes = sizes_of_values(ops, fed, free, hosted)
    varying = _after(ops, fed)
    device_ops, received = _of_devices(ops, fetches, hosted, sizes)
    tensors = {t.name: t for t in received if _leaves(t, varying)}
    for tensor in inputs:
        if tensor.op in device_ops:
            tensors[tensor.name] = tensor
    names = {op.name for op in device_ops}
    sizes = [use for use in sizes if use.op.name in names]
    return HostSplit([*tensors.values()], sizes, hosted, device_ops)


def _of_devices(
    ops: Sequence[Any],
    fetches: Sequence[Any],
    hosted: Collection[str],
    sizes: Sequence[SizeUse],
) -> tuple[list[Any], list[Any]]:
    """Returns the operations of the devices, and the tensors that they receive."""
    needed, received = set[str](), []
    of_host = {(use.op.name, use.number) for use in sizes}
    stack = [*fetches]
    while stack:
        element = stack.pop()
        op = getattr(element, "op", element)
        if op.name in hosted:
            received += [] if op is element else [element]
        elif op.name not in needed:
            needed.add(op.name)
            stack += op.control_inputs
            stack += [
                tensor
                for number, tensor in enumerate(op.inputs)
                if (op.name, number) not in of_host
            ]
    positions = {op.name: position for position, op in enumerate(ops)}
    received.sort(key=lambda tensor: (positions[tensor.op.name], tensor.name))
    return [op for op in ops if op.name in needed], received


def _host_operations(
    graph: Any, ops: Sequence[Any], inputs: Sequence[Any], rows: int
) -> tuple[set[str], set[str]]:
    """Returns the names of operations that the host runs, and of those it can run."""
    definition = definition_of(graph)
    marked, sizes = borders_of(graph), _sizes_in(ops)
    settled = functools.partial(_is_settled, rows=rows, sizes=sizes)
    fed = {tensor.op.name for tensor in inputs}
    hosted = {tensor.op.name for tensor in inputs if not settled(tensor)}
    free = set(fed)

    def continues(op: Any, tensor: Any) -> bool:
        if tensor.op.name not in hosted or tensor.name in marked:
            return False
        if settled(tensor):
            return tensor.op.name not in fed and _narrows(op, tensor)
        return not _reads_shape(op, tensor)

    for op in ops:
        before = {tensor.op.name for tensor in op.inputs}
        if op.name in fed or not (before <= free and _is_repeatable(op)):
            continue
        free.add(op.name)
        if _is_odd(op, definition) or any(continues(op, t) for t in op.inputs):
            hosted.add(op.name)
    return hosted, free


def _after(ops: Sequence[Any], first: Collection[str]) -> set[str]:
    """Returns the names of operations, and of those that depend on them."""
    dependents = set(first)
    for op in ops:
        if any(tensor.op.name in dependents for tensor in op.inputs):
            dependents.add(op.name)
    return dependents


def _is_repeatable(op: Any) -> bool:
    """Returns whether an operation gives the same results for the same inputs."""
    if op.type in _AS_CHECKS or op.type.startswith(_REPEATABLE):
        return True
    return not op.op_def.is_stateful and not op.type.startswith("Placeholder")


def _is_odd(op: Any, definition: Any) -> bool:
    """Returns whether only the host can run an operation."""
    if op.type == "Const":
        return False
    reason = reason_against(op, definition.nodes[op.name], definition.library)
    return reason is not None


def _reads_shape(op: Any, tensor: Any) -> bool:
    """Returns whether an operation reads only the shape of a tensor of numbers."""
    return op.type in OF_SHAPES and _has_numbers(tensor)


def _narrows(op: Any, tensor: Any) -> bool:
    """Returns whether an operation reads 64-bit integers and keeps their shape.

    The devices have 32 bits, so the host must reduce a hash to them.
    """
    is_wide = tensor.dtype.name in ("int64", "uint64")
    return is_wide and [output.shape for output in op.outputs] == [tensor.shape]


def _is_settled(tensor: Any, rows: int, sizes: Collection[str]) -> bool:
    """Returns whether a tensor has numbers, in one row for each example."""
    shape = tensor.shape
    is_fixed = shape.is_fully_defined() and shape.rank > 0
    is_by_row = is_fixed and shape.as_list()[0] == rows and tensor.name not in sizes
    return _has_numbers(tensor) and is_by_row


def _sizes_in(ops: Sequence[Any]) -> set[str]:
    """Returns the names of tensors that are computed only from shapes.

    They may have as many elements as a batch has rows.
    """
    sizes = set[str]()
    for op in ops:
        is_source = op.type in OF_SHAPES or op.type.startswith("Sparse")
        is_source |= SHAPE_NAME in op.name
        are_sizes = [tensor.name in sizes for tensor in op.inputs]
        if is_source or (any(are_sizes) and all(map(_may_be_size, op.inputs))):
            sizes.update(output.name for output in op.outputs if _may_be_size(output))
    return sizes


def _may_be_size(tensor: Any) -> bool:
    shape = tensor.shape
    return tensor.dtype.is_integer and shape.is_fully_defined() and shape.rank < 2


def _leaves(tensor: Any, varying: Collection[str]) -> bool:
    """Returns whether the host passes a tensor to the devices."""
    if _has_numbers(tensor):
        return True
    # A constant string stays in its place.
    return tensor.dtype.name == "string" and tensor.op.name in varying


def _has_numbers(tensor: Any) -> bool:
    dtype = tensor.dtype
    is_number = dtype.is_floating or dtype.is_integer or dtype.is_complex
    return bool(is_number or dtype.is_bool)


def size_of_values(
    graph: Any, inputs: Sequence[Any], fetches: Sequence[Any]
) -> SizeUse | None:
    """Returns a size of a step that depends on values of a dense input, if any."""
    ops = without_assertions(graph, fetches)
    if not needs_sizes(ops):
        return None
    fed, free = {tensor.op.name for tensor in inputs}, set[str]()
    for op in ops:
        before = {tensor.op.name for tensor in op.inputs}
        if op.name in fed or (before <= free and _is_repeatable(op)):
            free.add(op.name)
    return next(iter(sizes_of_values(ops, fed, free)), None)
