"""The tensors inside dicts, sparse tensors and ragged tensors."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from keras_tpu_estimator.ground.base.types import Nest

if TYPE_CHECKING:
    import tensorflow as tf


def components(nest: Nest) -> list["tf.Tensor"]:
    """Returns the dense tensors that a nest consists of.

    A sparse tensor consists of indices, values and a shape. Keys of dicts may
    be of several types, which neither JAX nor TensorFlow can sort.
    """
    import tensorflow as tf

    if isinstance(nest, Mapping):
        return [each for value in nest.values() for each in components(value)]
    return list(tf.nest.flatten(nest, expand_composites=True))
