"""Initial values that do not depend on seeds of ops."""

import numpy as np
import tensorflow.compat.v1 as tf


class Normal:
    """An initializer that takes values from a NumPy random stream.

    Each call of a `model_fn` makes a new one, so that all graphs have equal initial
    values.
    """

    def __init__(self, scale=0.1, seed=0):
        self._scale = scale
        self._numbers = np.random.RandomState(seed)

    def __call__(self, shape, dtype=tf.float32, partition_info=None):
        shape = [int(size) for size in shape]
        values = self._numbers.normal(size=shape) * self._scale
        return tf.constant(values, dtype)
