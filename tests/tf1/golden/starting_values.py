"""Initial values that no seed of an op decides."""

import numpy as np
import tensorflow.compat.v1 as tf


class Normal:
    """An initializer that gives each variable the next of NumPy's numbers.

    A `model_fn` makes its own when it is called, so that each graph begins
    with the same ones.
    """

    def __init__(self, scale=0.1, seed=0):
        self._scale = scale
        self._numbers = np.random.RandomState(seed)

    def __call__(self, shape, dtype=tf.float32, partition_info=None):
        shape = [int(size) for size in shape]
        values = self._numbers.normal(size=shape) * self._scale
        return tf.constant(values, dtype)
