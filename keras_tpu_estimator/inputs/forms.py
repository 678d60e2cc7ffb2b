"""The forms in which an `input_fn` may return its data."""

import sys
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.inputs.batch import Example


def is_dataset(value: Any) -> bool:
    """Whether a value is a `tf.data.Dataset`."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(value, tensorflow.data.Dataset)


def is_stream(value: Any) -> bool:
    """Whether a value yields batches, rather than being one."""
    if isinstance(value, Mapping | tuple | list | str | bytes):
        return False
    return hasattr(value, "__iter__") and not hasattr(value, "dtype")


def batch_of(value: Any, item: Any) -> Any:
    """A batch that keeps its numbers while the next one is read.

    Args:
        value: What the batch was read from.
        item: The batch, as it was read.
    """
    if is_dataset(value) or not is_stream(value):
        return item
    # Copied, for a stream may fill the same arrays again; and a PyTorch loader
    # makes lists of its pairs.
    pair = isinstance(item, list) and len(item) == 2
    return jax.tree.map(np.array, tuple(item) if pair else item)


def example_of(value: Any) -> Example:
    """A batch as features and labels, in NumPy arrays.

    Args:
        value: A pair of features and labels, or features alone.

    Raises:
        ValueError: It is a tuple of another length, or empty.
    """
    features, labels = value, None
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        if len(value) != 2:
            raise ValueError(
                "`input_fn` should return (or yield) a tuple of length 2, "
                "features and labels, or features alone. Received a tuple of "
                f"length {len(value)}. Put several features into a dict."
            )
        features, labels = value
    example = Example(*jax.tree.map(np.asarray, (features, labels)))
    if not jax.tree.leaves(example.features):
        raise ValueError(
            "`input_fn` should return at least one feature. Received: "
            f"{features!r}"
        )
    return example


def check_dense(element_spec: Any) -> None:
    """Checks that a dataset has plain tensors only.

    Raises:
        TypeError: It has a sparse or ragged one.
    """
    tensorflow = sys.modules["tensorflow"]
    allowed = (tensorflow.TensorSpec, tensorflow.NoneTensorSpec)
    for path, spec in jax.tree_util.tree_leaves_with_path(element_spec):
        if not isinstance(spec, allowed):
            raise TypeError(
                f"The dataset's element{jax.tree_util.keystr(path)} should be "
                f"a dense tensor. Received: {spec}. Make it dense in the "
                "dataset, for instance with tf.sparse.to_dense or .to_tensor()."
            )


def hide_gpus() -> None:
    """Keeps TensorFlow, if it is there, from the memory that JAX needs."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return
    try:
        tensorflow.config.set_visible_devices([], "GPU")
    except RuntimeError:
        # It has been initialised; then its devices are the user's choice.
        return
