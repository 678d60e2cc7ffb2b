"""Gradients that TensorFlow computes on the host, made of operations that XLA has."""

from collections.abc import Callable
from typing import Any

import numpy as np

Gradient = Callable[..., Any]


def of_nearest(original: Gradient) -> Gradient:
    """Adapts the gradient of `ResizeNearestNeighbor`, except for unknown sizes."""

    def gradient(op: Any, grad: Any) -> Any:
        import tensorflow as tf

        images, size = op.inputs[0], tf.get_static_value(op.inputs[1])
        if size is None or None in images.shape.as_list()[1:3]:
            return original(op, grad)
        for axis, new in zip((1, 2), size, strict=True):
            old = images.shape.as_list()[axis]
            sources = _nearest(
                old,
                int(new),
                op.get_attr("align_corners"),
                op.get_attr("half_pixel_centers"),
            )
            grad = _summed(grad, axis, np.bincount(sources, minlength=old))
        return [grad, None]

    return gradient


def of_quantizing(original: Gradient) -> Gradient:
    """Adapts the gradient of `QuantizeAndDequantizeV4`: 1 inside the range.

    The gradient of the range itself is zero, as in TensorFlow's kernel.
    """
    del original

    def gradient(op: Any, grad: Any) -> Any:
        import tensorflow as tf

        values, *ends = op.inputs
        least, most = (_along(op, end) for end in ends)
        is_inside = tf.logical_and(values >= least, values <= most)
        values_grad = tf.where(is_inside, grad, tf.zeros_like(grad))
        return [values_grad, *map(tf.zeros_like, ends)]

    return gradient


# The gradients by operation type.
GRADIENTS = {
    "QuantizeAndDequantizeV4": of_quantizing,
    "ResizeNearestNeighbor": of_nearest,
}


def _along(op: Any, ends: Any) -> Any:
    """Returns the ends of ranges in the shape that an operation's axis needs."""
    import tensorflow as tf

    axis = op.get_attr("axis")
    if axis == -1:
        return ends
    shape = [1] * op.inputs[0].shape.rank
    shape[axis] = -1
    return tf.reshape(ends, shape)


def _nearest(
    old: int, new: int, align_corners: bool, half_pixel_centers: bool
) -> np.ndarray:
    """Returns the source row of each new row, computed as in TensorFlow's kernel."""
    aligned = align_corners and new > 1
    ratio = (old - 1) / (new - 1) if aligned else old / new
    rows = np.arange(new, dtype=np.float32)
    if half_pixel_centers:
        rows += np.float32(0.5)
    positions = rows * np.float32(ratio)
    if align_corners:
        sources = np.floor(positions + np.float32(0.5))
    else:
        sources = np.floor(positions)
    return np.clip(sources, 0, old - 1).astype(int)


def _summed(grad: Any, axis: int, counts: np.ndarray) -> Any:
    """Sums consecutive rows, in groups of these sizes."""
    import tensorflow as tf

    most, shape = int(counts.max()), tf.shape(grad)
    if counts.min() == most:
        cut = tf.concat([shape[:axis], [len(counts), most], shape[axis + 1 :]], 0)
        return tf.reduce_sum(tf.reshape(grad, cut), axis + 1)
    starts = np.cumsum(counts) - counts
    last = int(counts.sum()) - 1
    mask_shape = [1] * 4
    mask_shape[axis] = len(counts)
    parts = []
    for number in range(most):
        rows = tf.gather(grad, np.minimum(starts + number, last), axis=axis)
        are_there = np.reshape(counts > number, mask_shape)
        parts.append(tf.where(are_there, rows, tf.zeros_like(rows)))
    return tf.add_n(parts)
