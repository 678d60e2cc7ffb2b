"""Sparse features of a batch, from `input_fn` to `model_fn`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

# The name of placeholders of shapes.
SHAPE_NAME = "kte_sparse_shape"


class SparseParts(NamedTuple):
    """The parts of a sparse tensor, which a dataset can hold as dense ones."""

    indices: Any
    values: Any
    shape: Any


class SparseArray:
    """A sparse array in NumPy arrays. To JAX it is a leaf.

    The indices are integers of shape `[cells, rank]`, in the order of the rows. The
    first axis of the shape is the batch.
    """

    def __init__(self, indices: np.ndarray, values: np.ndarray, shape: Any):
        self.indices = indices
        self.values = values
        self.shape = tuple(map(int, shape))

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The arrays that a placeholder of a sparse tensor is fed with."""
        return self.indices, self.values, np.asarray(self.shape, "int64")

    def __getitem__(self, rows: slice) -> "SparseArray":
        """Returns some of the rows."""
        start, stop, _ = rows.indices(self.shape[0])
        mask = (self.indices[:, 0] >= start) & (self.indices[:, 0] < stop)
        indices = self.indices[mask]
        indices[:, 0] -= start
        return SparseArray(indices, self.values[mask], (stop - start, *self.shape[1:]))


def in_parts(value: Any) -> Any:
    """Returns a sparse tensor of TensorFlow in parts, and others as they are."""
    import tensorflow as tf

    if not isinstance(value, tf.SparseTensor):
        return value
    # The user's code decides the order of the indices.
    value = tf.sparse.reorder(value)
    return SparseParts(value.indices, value.values, value.dense_shape)


def dataset_in_parts(dataset: Any) -> Any:
    """Returns a dataset with sparse tensors in parts."""
    import tensorflow as tf

    spec = dataset.element_spec
    sparse = tf.SparseTensorSpec
    if not any(isinstance(component, sparse) for component in tf.nest.flatten(spec)):
        return dataset

    def converted(*element: Any) -> Any:
        tree = element if isinstance(spec, tuple) else element[0]
        return tf.nest.map_structure(in_parts, tree)

    return dataset.map(converted)


def from_parts(tree: Any) -> Any:
    """Returns a pytree with a `SparseArray` for each sparse tensor."""
    import tensorflow as tf

    kinds = (SparseParts, tf.compat.v1.SparseTensorValue, tf.SparseTensor)

    def joined(node: Any) -> Any:
        if isinstance(node, tf.SparseTensor):
            node = in_parts(node)
        is_sparse = isinstance(node, kinds)
        return SparseArray(*map(np.asarray, node)) if is_sparse else node

    return jax.tree.map(joined, tree, is_leaf=lambda node: isinstance(node, kinds))


def placeholder_for(leaf: Any, shape: Sequence[int]) -> Any:
    """Returns a placeholder for one of a batch's features, dense or sparse."""
    import tensorflow as tf

    v1 = tf.compat.v1
    if not isinstance(leaf, SparseArray):
        return v1.placeholder(leaf.dtype, shape)
    rows, *inner = shape
    dense_shape = v1.placeholder(tf.int64, [1 + len(inner)], SHAPE_NAME)
    # All batches have the same number of rows, and no other size in common.
    sizes = [tf.constant(rows, tf.int64), *tf.unstack(dense_shape)[1:]]
    shape = tf.stack(sizes) if inner else tf.identity(dense_shape)
    return tf.SparseTensor(
        v1.placeholder(tf.int64, [None, 1 + len(inner)]),
        v1.placeholder(leaf.dtype, [None]),
        shape,
    )


def fed_for(tree: Any) -> list[Any]:
    """Returns the placeholders that a batch feeds for a pytree of features."""
    return [
        placeholder
        for leaf in jax.tree.leaves(tree)
        for placeholder in _fed_for_one(leaf)
    ]


def _fed_for_one(leaf: Any) -> list[Any]:
    import tensorflow as tf

    if not isinstance(leaf, tf.SparseTensor):
        return [leaf]
    op = leaf.dense_shape.op
    dense_shape = op.inputs[1].op.inputs[0] if op.type == "Pack" else op.inputs[0]
    return [leaf.indices, leaf.values, dense_shape]
