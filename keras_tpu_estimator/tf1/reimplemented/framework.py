"""Functions of `tf.contrib.framework` and `tf.contrib.eager`."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf


def smart_cond(
    pred: Any,
    fn1: Callable[[], Any],
    fn2: Callable[[], Any],
    name: str | None = None,
) -> Any:
    """Calls one of two functions, in the graph only if the condition is unknown.

    Args:
        pred: A boolean, a number or a tensor.
        fn1: The function to call if it is true.
        fn2: The function to call if it is false.
        name: The name of the operation.

    Example:

    >>> smart_cond(True, lambda: "yes", lambda: "no")
    'yes'
    """
    value = tf.get_static_value(tf.convert_to_tensor(pred, name="pred"))
    if value is None:
        return tf.cond(pred, fn1, fn2, name=name)
    return fn1() if value else fn2()


def reduce_sum_n(tensors: Sequence[Any], name: str | None = None) -> Any:
    """Returns the sum of all numbers in some tensors.

    Args:
        tensors: Tensors of one dtype.
        name: The name of the operation.

    Raises:
        ValueError: There is no tensor.
    """
    if not tensors:
        raise ValueError(f"`tensors` must not be empty. Received: {tensors!r}")
    with tf.name_scope(name, "reduce_sum_n", tensors):
        return tf.add_n([tf.reduce_sum(tensor) for tensor in tensors])


def remove_squeezable_dimensions(
    predictions: Any, labels: Any, name: str | None = None
) -> tuple[Any, Any]:
    """Removes a last axis of size 1 that only one of two tensors has.

    Args:
        predictions: A tensor.
        labels: Another tensor.
        name: The name of the operation.

    Returns:
        Predictions and labels, in the opposite order of `tf.confusion_matrix`.
    """
    with tf.name_scope(name, "remove_squeezable_dimensions"):
        predictions = tf.convert_to_tensor(predictions)
        labels = tf.convert_to_tensor(labels)
        return _squeezed(predictions, labels), _squeezed(labels, predictions)


def with_shape(expected_shape: Any, tensor: Any) -> Any:
    """Returns a tensor whose shape is checked, now or at run time.

    Args:
        expected_shape: Sizes, or a tensor of sizes, where -1 matches any size.
        tensor: A dense tensor.

    Returns:
        The tensor. If a scalar is expected, a tensor of `[1]` is reshaped.

    Raises:
        ValueError: The tensor has another shape.
    """
    if isinstance(tensor, tf.SparseTensor):
        raise ValueError("`tensor` must not be sparse.")
    if tf.is_tensor(expected_shape):
        return _checked(expected_shape, tensor)
    sizes = [int(size) for size in expected_shape]
    if not tensor.shape.is_fully_defined():
        if not sizes:
            return tf.reshape(tensor, [])
        checked = _checked(tf.constant(sizes), tensor)
        checked.set_shape(sizes)
        return checked
    if tensor.shape.as_list() == sizes:
        return tensor
    if not sizes and tensor.shape.as_list() == [1]:
        return tf.reshape(tensor, [])
    raise ValueError(
        f"The shape of {tensor.name!r} must be {sizes}. "
        f"Received: {tensor.shape.as_list()}"
    )


def with_same_shape(expected_tensor: Any, tensor: Any) -> Any:
    """Returns a tensor that is checked to have another tensor's shape.

    Args:
        expected_tensor: The other tensor.
        tensor: As in `with_shape`.
    """
    shape = expected_tensor.shape
    if shape.is_fully_defined():
        return with_shape(shape.as_list(), tensor)
    return with_shape(tf.shape(expected_tensor), tensor)


def assert_scalar_int(tensor: Any, name: str | None = None) -> Any:
    """Checks that a tensor is one integer.

    Args:
        tensor: A tensor, or a value that can be converted to one.
        name: The name of the operation.

    Returns:
        The tensor.

    Raises:
        ValueError: The tensor has another dtype or axes.
    """
    tensor = tf.convert_to_tensor(tensor)
    if not tensor.dtype.base_dtype.is_integer:
        raise ValueError(f"`tensor` must be an integer. Received: {tensor.dtype.name}")
    return tf.debugging.assert_scalar(tensor, name=name)


def _checked(sizes: Any, tensor: Any) -> Any:
    """Returns the tensor, after a check of its shape in the graph."""
    shape = tf.shape(tensor)
    is_as_expected = tf.reduce_all(
        tf.logical_or(tf.equal(sizes, -1), tf.equal(sizes, shape))
    )
    message = ["Expected the shape", sizes, "Received:", shape]
    check = tf.debugging.Assert(is_as_expected, message)
    with tf.control_dependencies([check]):
        return tf.identity(tensor)


def _squeezed(tensor: Any, other: Any) -> Any:
    """Returns the tensor without its last axis, if the other has one less."""
    rank, other_rank = tensor.shape.rank, other.shape.rank
    if rank is not None and other_rank is not None:
        return tf.squeeze(tensor, [-1]) if rank == other_rank + 1 else tensor
    if rank is not None and not tensor.shape[-1:].is_compatible_with([1]):
        return tensor
    return tf.cond(
        tf.equal(tf.rank(tensor), tf.rank(other) + 1),
        lambda: tf.squeeze(tensor, [-1]),
        lambda: tensor,
    )


def list_devices() -> list[str]:
    """Returns the names of TensorFlow's devices, which run the input on the host."""
    names = (device.name for device in tf.config.list_logical_devices())
    return [f"/job:localhost/replica:0/task:0{name}" for name in names]
