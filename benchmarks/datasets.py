"""The input that all contestants read: `tf.data`, from memory."""

from collections.abc import Iterator
from typing import Any

from benchmarks.models import Classifier


def batches(network: Classifier, examples: int) -> Any:
    """A `tf.data.Dataset` of batches that contains each example once."""
    import tensorflow as tf

    slices = tf.data.Dataset.from_tensor_slices(network.data(examples))
    return slices.batch(network.batch).cache()


def endless(network: Classifier, examples: int) -> Any:
    """A `tf.data.Dataset` of full batches that repeats the examples."""
    import tensorflow as tf

    slices = tf.data.Dataset.from_tensor_slices(network.data(examples))
    # Whole batches are kept in memory: slicing single examples out of it would
    # be all that is measured, whoever reads them.
    whole = slices.batch(network.batch, drop_remainder=True).cache()
    return whole.repeat().prefetch(2)


def stacked(dataset: Any, steps: int, iterations: int) -> Iterator[Any]:
    """NumPy arrays of several batches each, for a number of steps."""
    loops = dataset.take(steps).batch(iterations).prefetch(2)
    return loops.as_numpy_iterator()
