"""Sparse, ragged and indexed tensors that hooks fetch, as tuples of dense ones."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax


class IndexedSlicesValue(NamedTuple):
    """The arrays of `tf.IndexedSlices`, with the names that TensorFlow gives them."""

    values: Any
    indices: Any
    dense_shape: Any


class _Ragged(NamedTuple):
    """The components of a ragged tensor."""

    values: Any
    row_splits: Any


def in_components(fetches: Any) -> Any:
    """Returns fetches with sparse and ragged tensors and `IndexedSlices` as tuples of
    their tensors.
    """
    import tensorflow as tf

    def components(leaf: Any) -> Any:
        if isinstance(leaf, tf.SparseTensor):
            parts = (leaf.indices, leaf.values, leaf.dense_shape)
            return tf.compat.v1.SparseTensorValue(*parts)
        if isinstance(leaf, tf.IndexedSlices):
            return IndexedSlicesValue(leaf.values, leaf.indices, leaf.dense_shape)
        if isinstance(leaf, tf.RaggedTensor):
            return _Ragged(components(leaf.values), leaf.row_splits)
        return leaf

    return jax.tree.map(components, fetches)


def joined(results: Any) -> Any:
    """Returns results with the ragged values that a TensorFlow session returns."""
    import tensorflow as tf

    def with_ragged(node: Any) -> Any:
        if not isinstance(node, _Ragged):
            return node
        make = tf.compat.v1.ragged.RaggedTensorValue
        return make(with_ragged(node.values), node.row_splits)

    return jax.tree.map(with_ragged, results, is_leaf=lambda x: isinstance(x, _Ragged))


def refuse_components(fetches: Any, leaves: Sequence[Any]) -> None:
    """Raises a ValueError if fetches have components that cores cannot concatenate."""
    for fetch in jax.tree.leaves(fetches):
        if not any(fetch is leaf for leaf in leaves):
            raise ValueError(
                "On several cores hooks must fetch dense tensors, because the "
                f"values of the cores are concatenated. Received: {fetch}. Fetch "
                "`tf.sparse.to_dense(tensor)` or `tf.convert_to_tensor(tensor)`, or "
                "set use_tpu=False to train on one device."
            )
