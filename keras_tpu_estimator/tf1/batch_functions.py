"""The parts of a served TF1 graph that run on batches of requests."""

from collections.abc import Callable
from typing import Any

from keras_tpu_estimator.export.batching import BatchConfig
from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.tf1 import internals


def call_batched(
    config: BatchConfig, function: Callable[..., Nest], args: list[Nest]
) -> Nest:
    """Calls a function of tensors on batches of requests.

    Args:
        config: The batching options.
        function: A function that builds a part of the graph and uses its variables.
        args: A pytree of tensors, batch first.

    Returns:
        The results for the rows of one request.
    """
    import tensorflow as tf

    inputs = [tf.convert_to_tensor(each) for each in tf.nest.flatten(args)]
    returned: list[Nest] = []

    def body(*own: Any) -> list[Any]:
        result = function(*tf.nest.pack_sequence_as(args, own))
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
    packed: Nest = tf.nest.pack_sequence_as(returned[-1], outputs)
    return packed
