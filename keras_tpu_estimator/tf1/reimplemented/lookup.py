"""Functions of `tf.contrib.lookup` whose arguments have other names in TensorFlow."""

from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.tf1.shims.resolving import resolve

lookup_ops = resolve("python.ops.lookup_ops")
_HASH = lookup_ops.FastHashSpec


def index_table_from_tensor(
    mapping: Any,
    num_oov_buckets: int = 0,
    default_value: int = -1,
    hasher_spec: Any = _HASH,
    dtype: Any = tf.string,
    name: str | None = None,
) -> Any:
    """Makes a table from values to their positions.

    Args:
        mapping: A list or a 1-D tensor of the values.
        num_oov_buckets: The number of positions for other values. Defaults to 0.
        default_value: The position of other values without these. Defaults to -1.
        hasher_spec: The hash function for other values.
        dtype: The type of the values. Defaults to strings.
        name: The name of the operation.
    """
    return lookup_ops.index_table_from_tensor(
        mapping, num_oov_buckets, default_value, hasher_spec, dtype, name
    )


def index_to_string_table_from_tensor(
    mapping: Any, default_value: str = "UNK", name: str | None = None
) -> Any:
    """Makes a table from positions to strings.

    Args:
        mapping: A list or a 1-D tensor of strings.
        default_value: The string of other positions. Defaults to 'UNK'.
        name: The name of the operation.
    """
    return lookup_ops.index_to_string_table_from_tensor(mapping, default_value, name)


def string_to_index_table_from_tensor(
    mapping: Any,
    num_oov_buckets: int = 0,
    default_value: int = -1,
    hasher_spec: Any = _HASH,
    name: str | None = None,
) -> Any:
    """Makes a table from strings to their positions, as `index_table_from_tensor`."""
    return index_table_from_tensor(
        mapping, num_oov_buckets, default_value, hasher_spec, name=name
    )


def string_to_index_table_from_file(
    vocabulary_file: Any = None,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: int = -1,
    hasher_spec: Any = _HASH,
    name: str | None = None,
) -> Any:
    """Makes a table from the lines of a file to their numbers."""
    return lookup_ops.index_table_from_file(
        vocabulary_file,
        num_oov_buckets,
        vocab_size,
        default_value,
        hasher_spec,
        name=name,
    )


def string_to_index(
    tensor: Any, mapping: Any, default_value: int = -1, name: str | None = None
) -> Any:
    """Returns the positions of strings in a list."""
    table = index_table_from_tensor(mapping, default_value=default_value, name=name)
    return table.lookup(tensor)


def index_to_string(
    tensor: Any, mapping: Any, default_value: str = "UNK", name: str | None = None
) -> Any:
    """Returns the strings at positions of a list."""
    return index_to_string_table_from_tensor(mapping, default_value, name).lookup(
        tensor
    )
