"""A script that makes the graph of a Keras model under the TensorFlow backend.

It runs by its path in a separate process, and imports nothing of this package. It
writes the result or an error to its standard output.
"""

import functools
import json
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import tensorflow as tf


class Task(NamedTuple):
    """The message to the process: a model's JSON, and the path of the graph's file."""

    model: str
    path: str


class TensorNames(NamedTuple):
    """The result: the names of the graph's tensors.

    `variables` are in Keras's order, and `outputs` in the order of their names.
    """

    variables: Sequence[str]
    features: Sequence[str]
    outputs: Sequence[str]


class Failure(NamedTuple):
    """The result of a failure: the error, and the operations in its traceback."""

    error: str
    operations: Sequence[str]


def main() -> None:
    """Makes the graph of the model in the standard input."""
    # TensorFlow imports these if they are installed.
    # `None` prevents the import of a module, although the type omits it.
    sys.modules.update(dict.fromkeys(("jax", "jaxlib")))  # type: ignore[arg-type]
    task = Task(*json.load(sys.stdin))
    try:
        sys.stdout.write(json.dumps(make(task.model, task.path)))
    except Exception as error:
        failure = Failure(
            f"{type(error).__name__}: {error}", list(operations_of(error))
        )
        sys.stdout.write(json.dumps(failure))
        sys.exit(3)


def operations_of(error: BaseException | None) -> Iterator[str]:
    """Yields the names of operations in an error's traceback, outermost first.

    These are the operations that Keras called, or made from a config, or whose
    arguments it made from a config.
    """
    import keras

    if error is None:
        return
    for frame, _ in traceback.walk_tb(error.__traceback__):
        caller, called, config = map(frame.f_locals.get, ("self", "layer", "config"))
        for operation in (called, caller):
            if isinstance(operation, keras.Operation):
                yield operation.name
        while isinstance(config, dict):
            if isinstance(config.get("name"), str):
                yield config["name"]
            config = config.get("config")
    yield from operations_of(error.__cause__ or error.__context__)


def make(config: str, path: str) -> TensorNames:
    """Writes a graph, and returns the names of its tensors.

    The model in the format of `to_json` must have a list of inputs and a dict of
    outputs.
    """
    import keras
    import tensorflow as tf

    compute_as_jax(tf)
    resize_as_jax(tf)
    keep_masks(keras)
    model = keras.models.model_from_json(config)
    trained = len(model.trainable_variables)

    def run(variables: list[Any], features: list[Any]) -> list[Any]:
        outputs, _ = model.stateless_call(
            variables[:trained], variables[trained:], features, training=False
        )
        return [outputs[name] for name in sorted(outputs)]

    variables = [*model.trainable_variables, *model.non_trainable_variables]
    traced = tf.function(run, autograph=False).get_concrete_function(
        [tf.TensorSpec(v.shape, v.dtype) for v in variables],
        [tf.TensorSpec(x.shape, x.dtype) for x in model.inputs],
    )
    with open(path, "wb") as file:
        file.write(with_constants(traced).SerializeToString())
    names = [tensor.name for tensor in traced.inputs]
    features = slice(len(variables), len(variables) + len(model.inputs))
    return TensorNames(
        names[: len(variables)],
        names[features],
        [tensor.name for tensor in traced.outputs],
    )


def compute_as_jax(tf: Any) -> None:
    """Makes Keras cast and gather as JAX does, also outside the valid ranges.

    Floats outside the range of an integer become its largest or smallest value, and NaN
    becomes 0. An invalid index returns NaN, or an integer that stands for it, where
    TensorFlow would fail on a CPU.
    """
    cast, gather = tf.cast, tf.gather

    def saturating(x: Any, dtype: Any, name: str | None = None) -> Any:
        dtype = tf.as_dtype(dtype).base_dtype
        if not (_is_float(x) and dtype.is_integer):
            return cast(x, dtype, name)
        low, high = cast(dtype.min, x.dtype), cast(dtype.max, x.dtype)
        is_inside = tf.logical_and(x > low, x < high)
        inside = cast(tf.where(is_inside, x, tf.zeros_like(x)), dtype)
        below = tf.where(x <= low, tf.constant(dtype.min, dtype), inside)
        return tf.where(x >= high, tf.constant(dtype.max, dtype), below, name)

    def filling(
        params: Any,
        indices: Any,
        validate_indices: Any = None,
        axis: Any = None,
        batch_dims: int = 0,
        name: str | None = None,
    ) -> Any:
        settings = {"axis": axis, "batch_dims": batch_dims}
        params, indices = map(tf.convert_to_tensor, (params, indices))
        first = batch_dims if axis is None else axis
        ranks = (params.shape.rank, indices.shape.rank)
        is_known = isinstance(first, int) and None not in ranks
        if is_known and first < 0:
            first += params.shape.rank
        is_constant = tf.get_static_value(indices) is not None
        if not is_known or is_constant or batch_dims not in (0, first):
            return gather(params, indices, name=name, **settings)
        size = cast(tf.shape(params)[first], indices.dtype)
        is_there = tf.logical_and(indices >= 0, indices < size)
        nearest = tf.where(is_there, indices, tf.zeros_like(indices))
        gathered = gather(params, nearest, name=name, **settings)
        for _ in range(params.shape.rank - first - 1):
            is_there = tf.expand_dims(is_there, -1)
        missing = tf.constant(_missing(params.dtype), params.dtype)
        return tf.where(is_there, gathered, missing)

    tf.cast, tf.gather = saturating, filling


def resize_as_jax(tf: Any) -> None:
    """Makes Keras compute the weights of bicubic interpolation as JAX does.

    TensorFlow reads them from a table, and most converters lack its operation.
    """
    resize = tf.image.resize

    def resizing(images: Any, size: Any, method: str, antialias: bool = False) -> Any:
        if method != "bicubic":
            return resize(images, size, method, antialias=antialias)
        images = tf.convert_to_tensor(images)
        axes = range(images.shape.rank - 3, images.shape.rank - 1)
        result = tf.cast(images, "float32")
        for axis, length in zip(axes, size, strict=True):
            before = images.shape[axis]
            if isinstance(length, int) and before == length:
                continue
            if before is None:
                before = tf.shape(images)[axis]
            weights = _cubic_weights(before, length, antialias)
            # The matrix product changes the last axis.
            order = [*range(images.shape.rank)]
            order[axis], order[-1] = order[-1], order[axis]
            moved = tf.matmul(tf.transpose(result, order), weights)
            result = tf.transpose(moved, order)
        return result

    tf.image.resize = resizing


def _cubic_weights(before: Any, after: Any, antialias: bool) -> Any:
    """Returns the weight of each old pixel for each new pixel.

    The kernel is Keys's; pixels outside the image have no weight.
    """
    import tensorflow as tf

    old, new = tf.cast(before, "float32"), tf.cast(after, "float32")
    step = 1.0 / (new / old)
    width = tf.maximum(step, 1.0) if antialias else tf.ones([])
    positions = (tf.range(new) + 0.5) * step - 0.5
    x = tf.abs(positions[None, :] - tf.range(old)[:, None]) / width
    near = ((1.5 * x - 2.5) * x) * x + 1.0
    far = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    zeros = tf.zeros_like(x)
    weights = tf.where(x < 1.0, near, tf.where(x < 2.0, far, zeros))
    return weights / tf.reduce_sum(weights, axis=0, keepdims=True)


def keep_masks(keras: Any) -> None:
    """Makes attention keep the masks of its inputs, as under the JAX backend."""
    layer = keras.layers.MultiHeadAttention
    call = layer.call

    @functools.wraps(call)
    def keeping(
        self: Any,
        query: Any,
        value: Any,
        key: Any = None,
        *args: Any,
        **kw: Any,
    ) -> Any:
        inputs = [tensor for tensor in (query, value, key) if tensor is not None]
        masks = [getattr(tensor, "_keras_mask", None) for tensor in inputs]
        try:
            return call(self, query, value, key, *args, **kw)
        finally:
            for tensor, mask in zip(inputs, masks, strict=True):
                tensor._keras_mask = mask

    layer.call = keeping


def _is_float(x: Any) -> bool:
    """Returns whether a value is a dense tensor of floats."""
    import tensorflow as tf

    is_dense = isinstance(x, tf.Tensor | tf.Variable)
    return is_dense and bool(x.dtype.is_floating)


def _missing(dtype: Any) -> Any:
    """Returns JAX's value for an invalid index."""
    if dtype.is_bool:
        return True
    if not dtype.is_integer:
        return float("nan")
    return dtype.max if dtype.is_unsigned else dtype.min


def with_constants(
    traced: "tf.types.experimental.ConcreteFunction",
) -> "tf.compat.v1.GraphDef":
    """Returns a traced function's graph, including the arrays that it closes over."""
    import tensorflow as tf

    graph = traced.graph.as_graph_def()
    nodes = {node.name: node for node in graph.node}
    captured = traced.captured_inputs
    placeholders = traced.inputs[len(traced.inputs) - len(captured) :]
    for placeholder, tensor in zip(placeholders, captured, strict=True):
        node = nodes[placeholder.op.name]
        node.op = "Const"
        node.attr.clear()
        node.attr["dtype"].type = tensor.dtype.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(tensor.numpy()))
    return graph


if __name__ == "__main__":
    main()
