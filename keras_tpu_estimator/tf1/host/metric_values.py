"""The values of metrics that count in variables of the model."""

from collections.abc import Mapping
from typing import Any

import jax

from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.tf1.graph import internals
from keras_tpu_estimator.tf1.graph.definitions import (
    Body,
    Definition,
    definition_of,
    reachable,
)
from keras_tpu_estimator.tf1.host.graph_cut import part_of
from keras_tpu_estimator.tf1.lift.effects import READS, effects_of


def read_after_updates(
    graph: Any, pairs: Mapping[str, tuple[PyTree, PyTree]]
) -> dict[str, tuple[PyTree, PyTree]]:
    """Returns metrics whose values read the model's variables after all updates.

    TensorFlow computes the values in a later run than the updates. Devices compute both
    in one step, so the reads are copied and wait for the last assignment. Metrics that
    count in local variables need no copies, because sessions on the host run them.
    """
    import tensorflow as tf

    updates = jax.tree.leaves([update for _, update in pairs.values()])
    definition = definition_of(graph)
    local = {v.op.name for v in tf.compat.v1.local_variables()}
    writers = {
        variable: graph.get_operation_by_name(writer)
        for variable, writer in _last_writes(graph, updates, definition).items()
        if variable not in local
    }
    values = {name: value for name, (value, _) in pairs.items()}
    tensors = [leaf for leaf in jax.tree.leaves(values) if tf.is_tensor(leaf)]
    copies = _copies(graph, tensors, writers, definition)
    values = jax.tree.map(
        lambda leaf: copies.get(leaf.name, leaf) if tf.is_tensor(leaf) else leaf, values
    )
    return {name: (values[name], update) for name, (_, update) in pairs.items()}


def _last_writes(
    graph: Any, updates: list[Any], definition: Definition
) -> Mapping[str, str]:
    """Returns the last operation that assigns each variable in the updates."""
    ops = reachable(graph, updates)
    variables = [op.name for op in ops if op.type == "VarHandleOp"]
    nodes = [definition.nodes[op.name] for op in ops if op.name not in variables]
    body = Body(nodes, [], variables)
    return effects_of(body, definition.library).last_writes


def _copies(
    graph: Any,
    tensors: list[Any],
    writers: Mapping[str, Any],
    definition: Definition,
) -> dict[str, Any]:
    """Returns, by name, copies of the tensors that read variables with a writer."""
    import tensorflow as tf

    ops = reachable(graph, tensors)
    reads = {
        op.name: writers[tensor.op.name]
        for op in ops
        if op.type in READS
        for tensor in op.inputs
        if tensor.op.name in writers
    }
    copied = set(reads)
    for op in ops:
        is_later = any(tensor.op.name in copied for tensor in op.inputs)
        if is_later and not op.op_def.is_stateful:
            copied.add(op.name)
    if not copied:
        return {}
    inputs = {
        tensor.name: tensor
        for op in ops
        if op.name in copied
        for tensor in op.inputs
        if tensor.op.name not in copied
    }
    names = [tensor.name for tensor in tensors if tensor.op.name in copied]
    elements = tf.graph_util.import_graph_def(
        part_of(definition, [op.name for op in ops], copied),
        inputs,
        [*names, *reads],
        name="after_updates",
    )
    for read, writer in zip(elements[len(names) :], reads.values(), strict=True):
        internals.set_control_inputs(read, [writer])
    return dict(zip(names, elements, strict=False))
