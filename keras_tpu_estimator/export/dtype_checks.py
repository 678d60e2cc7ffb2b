"""Requests to a served model in the dtypes that devices have.

`predict` refuses numbers that do not fit. So does a served model.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf


def in_dtype(tensor: "tf.Tensor", dtype: np.dtype, name: str) -> "tf.Tensor":
    """Casts a feature; a request with numbers that do not fit gets an error.

    Converters of other runtimes leave out the error. There, integers that do
    not fit become the nearest ones that do, which are in no vocabulary.

    Args:
        tensor: The feature, as requests have it.
        dtype: The dtype that the model has it in.
        name: What the feature is called in the error.

    Returns:
        The tensor itself if it has the dtype.
    """
    import tensorflow as tf

    narrow = tf.as_dtype(dtype)
    if tensor.dtype == narrow:
        return tensor
    if tensor.dtype.is_integer:
        own = tensor.dtype
        least, most = max(own.min, narrow.min), min(own.max, narrow.max)
        result = tf.cast(tf.clip_by_value(tensor, least, most), narrow)
        fits = tf.equal(tf.cast(result, tensor.dtype), tensor)
    else:
        result = tf.cast(tensor, narrow)
        fits = tf.equal(_is_finite(result), _is_finite(tensor))
    check = tf.debugging.Assert(
        tf.reduce_all(fits),
        [
            f"The feature {name} must fit {narrow.name}, because devices have "
            "32 bits. Received:",
            tensor,
        ],
    )
    with tf.control_dependencies([check]):
        return tf.identity(result)


def _is_finite(tensor: "tf.Tensor") -> "tf.Tensor":
    import tensorflow as tf

    if tensor.dtype.is_complex:
        return _is_finite(tf.math.real(tensor)) & _is_finite(tf.math.imag(tensor))
    return tf.math.is_finite(tensor)
