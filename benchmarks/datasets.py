"""The input of all contestants: a `tf.data.Dataset` in memory."""

from collections.abc import Iterator
from typing import Any

from benchmarks.models import Classifier


def batches(network: Classifier, examples: int) -> Any:
    """Returns a `tf.data.Dataset` of batches with each example once."""
    import tensorflow as tf

    slices = tf.data.Dataset.from_tensor_slices(network.data(examples))
    return slices.batch(network.batch).cache()


def endless(network: Classifier, examples: int) -> Any:
    """Returns a `tf.data.Dataset` of full batches that repeats the examples."""
    import tensorflow as tf

    slices = tf.data.Dataset.from_tensor_slices(network.data(examples))
    # The memory contains batches, because slicing single examples would take most of
    # the measured time.
    whole = slices.batch(network.batch, drop_remainder=True).cache()
    return whole.repeat().prefetch(2)


def stacked(dataset: Any, steps: int, iterations: int) -> Iterator[Any]:
    """Yields NumPy arrays of several batches, for a number of steps."""
    loops = dataset.take(steps).batch(iterations).prefetch(2)
    return loops.as_numpy_iterator()
