"""The graph of a served TF1 model: its own graph, after the receivers."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_tpu_estimator.base.common.tensorflow_session import hide_gpus
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.export.batching import BatchConfig, batching_in_graph
from keras_tpu_estimator.export.receivers import Receiver, ReceiverFn
from keras_tpu_estimator.export.served_model_fn import ServedModelFn
from keras_tpu_estimator.export.serving_graph import (
    ServingGraph,
    check_any,
    check_fed,
    checked_receiver,
    signature_defs,
)
from keras_tpu_estimator.files.formats import loading
from keras_tpu_estimator.files.formats.reader import VariableNotFoundError
from keras_tpu_estimator.files.warm_start.pairing import cast
from keras_tpu_estimator.tf1.graph import internals
from keras_tpu_estimator.tf1.graph.building import building
from keras_tpu_estimator.tf1.graph.scaffolds import as_ours, scaffold_of


def call_batched(
    config: BatchConfig, function: Callable[..., PyTree], args: list[PyTree]
) -> PyTree:
    """Calls a function on batches of requests, and returns the result for one.

    The function builds a part of the graph and uses its variables. `args` is a pytree
    of tensors, batch first.
    """
    import tensorflow as tf

    inputs = [tf.convert_to_tensor(argument) for argument in tf.nest.flatten(args)]
    returned: list[PyTree] = []

    def body(*arguments: Any) -> list[Any]:
        result = function(*tf.nest.pack_sequence_as(args, arguments))
        tensors = [tf.convert_to_tensor(t) for t in tf.nest.flatten(result)]
        returned.append(tf.nest.pack_sequence_as(result, tensors))
        return tensors

    defined = internals.function_of_graph(body, inputs)
    captured = defined.captured_inputs  # This builds the function.
    inner = tf.nest.flatten(returned[-1])
    outputs = tf.raw_ops.BatchFunction(
        in_tensors=inputs,
        captured_tensors=captured,
        f=defined,
        Tout=[tensor.dtype for tensor in inner],
        num_batch_threads=config.num_batch_threads,
        max_batch_size=config.max_batch_size,
        batch_timeout_micros=config.batch_timeout_micros,
        allowed_batch_sizes=list(config.allowed_batch_sizes or ()),
        max_enqueued_batches=config.max_enqueued_batches,
    )
    for output, tensor in zip(outputs, inner, strict=True):
        output.set_shape(tensor.shape)
    packed: PyTree = tf.nest.pack_sequence_as(returned[-1], outputs)
    return packed


@dataclasses.dataclass(frozen=True)
class GraphModel:
    """A model that is part of its graph, with the values of its variables by path."""

    values: Mapping[str, np.ndarray]


class ServedTF1ModelFn(ServedModelFn):
    """A `ServedModelFn` of TF1, called in the graph that is served."""

    def _metric_tensors(self, spec: Any) -> dict[str, Any]:
        """Returns both tensors of each metric, as the original returned them."""
        metrics = getattr(spec, "eval_metric_ops", None)
        if metrics is None and spec.eval_metrics is not None:
            metrics = spec.eval_metrics.call(spec.eval_metrics.tensors)
        return {
            f"metrics/{name}/{part}": _as_tensor(element)
            for name, pair in (metrics or {}).items()
            for part, element in zip(("value", "update_op"), pair, strict=True)
        }


def _as_tensor(element: Any) -> Any:
    """Converts an operation to an empty tensor, because signatures contain tensors."""
    import tensorflow as tf

    if not isinstance(element, tf.Operation):
        return element
    with tf.control_dependencies([element]):
        return tf.constant([], name="metric_op_wrapper")


def build_tf1_graph(
    receiver_fn: ReceiverFn,
    kinds: tuple[type[Receiver], ...],
    served: ServedTF1ModelFn,
    checkpoint: str,
    seed: int | None,
) -> ServingGraph:
    """Builds the graph of a served TF1 model, after its receivers."""
    import tensorflow as tf

    hide_gpus()
    with building(seed) as graph:
        receiver = checked_receiver(receiver_fn(), kinds)
        check_fed(receiver.inputs, receiver.receiver_tensors, "the features")
        spec: Any
        with batching_in_graph(call_batched):
            spec, outputs = served.outputs_of(receiver.inputs)
        scaffold = scaffold_of(spec, use_tpu=False)
        signatures = dict(signature_defs(receiver, served.signatures, outputs))
        variables = {v.op.name: v for v in tf.compat.v1.global_variables()}
    init_op = scaffold.local_init and scaffold.local_init.op
    names = as_ours(scaffold, served.mode, graph, variables).sources
    check_any(served.signatures, signatures)
    return ServingGraph(
        graph=graph,
        signatures=signatures,
        variables=variables,
        model=GraphModel(_values(variables, names, checkpoint, served.mode)),
        features=(),
        outputs=(),
        results=(),
        init_op=getattr(init_op, "op", init_op),
    )


def _values(
    variables: Mapping[str, Any],
    names: Mapping[str, str],
    checkpoint: str,
    mode: str,
) -> dict[str, np.ndarray]:
    """Reads the values of variables from a checkpoint, by variable name."""
    sources = {name: names.get(name, name) for name in variables}
    try:
        read = loading.read(checkpoint, sorted(set(sources.values())))
    except VariableNotFoundError as error:
        raise ValueError(
            f"In mode {mode!r}: the checkpoint does not match the model. {error} "
            "Restore the variable's name, or export with the model_fn that the "
            "checkpoint is from."
        ) from error
    values = {name: read[source] for name, source in sources.items()}
    for name, value in values.items():
        shape = tuple(variables[name].shape.as_list())
        if value.shape != shape:
            raise ValueError(
                f"In mode {mode!r}: the variable {name!r} has shape {shape} in "
                f"model_fn, but {value.shape} in the checkpoint "
                f"{checkpoint!r}. Restore its size."
            )
    return {
        name: cast(
            value,
            np.dtype(variables[name].dtype.base_dtype.as_numpy_dtype),
            name,
            sources[name],
            checkpoint,
        )
        for name, value in values.items()
    }
