"""Sparse tensors of inputs as dense ones, because devices have only those."""

import sys
from collections.abc import Mapping
from typing import Any

# A missing float is a zero. A missing integer may be an id, and zero is one, so
# only a front end knows a value for it.
_ZEROS: Mapping[str, int] = {"f": 0}


def in_dense_tensors(dataset: Any, missing: Mapping[str, int] = _ZEROS) -> Any:
    """Returns a dataset with dense tensors for its sparse ones, if it can.

    Args:
        dataset: A `tf.data.Dataset`.
        missing: Values of missing cells by the kind of dtype, as NumPy names
            it. Tensors of other kinds stay sparse.
    """
    nest = sys.modules["tensorflow"].nest
    spec = dataset.element_spec
    if not any(_has_value(each, missing) for each in nest.flatten(spec)):
        return dataset

    def converted(*element: Any) -> Any:
        whole = element if isinstance(spec, tuple) else element[0]
        return nest.map_structure(lambda each: dense(each, missing), whole)

    return dataset.map(converted)


def dense(tensor: Any, missing: Mapping[str, int] = _ZEROS) -> Any:
    """Returns a sparse tensor as a dense one, and others as they are.

    Args:
        tensor: A tensor of TensorFlow, or something else.
        missing: As in `in_dense_tensors`.
    """
    if not _has_value(tensor, missing):
        return tensor
    sparse = sys.modules["tensorflow"].sparse
    value = missing[_kind(tensor)]
    # The order of indices is up to the user's code, or to a client.
    made = sparse.to_dense(sparse.reorder(tensor), value)
    made.set_shape(tensor.shape)
    return made


def _has_value(sparse: Any, missing: Mapping[str, int]) -> bool:
    """Whether this is a sparse tensor, or its spec, that can become dense."""
    tensorflow = sys.modules["tensorflow"]
    kinds = (tensorflow.SparseTensor, tensorflow.SparseTensorSpec)
    return isinstance(sparse, kinds) and _kind(sparse) in missing


def _kind(sparse: Any) -> str:
    """The kind of a dtype, as NumPy names it, with bfloat16 among floats."""
    if sparse.dtype.is_floating:
        return "f"
    is_signed = sparse.dtype.is_integer and not sparse.dtype.is_unsigned
    return "i" if is_signed else "other"
