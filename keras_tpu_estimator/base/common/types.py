"""Types of users' arguments, for annotations."""

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy.typing as npt

PathLike: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""A path of a file or a directory, or, as a string, its URL."""

CheckpointLike: TypeAlias = PathLike | Mapping[str, Any]
"""An argument of `load_checkpoint`: a path, or a dict of arrays."""

TensorLike: TypeAlias = npt.ArrayLike
"""A value that converts to a tensor: an array of JAX, NumPy or TensorFlow, a
number, or lists of these."""

# A precise type would reject valid arguments, because type checkers do not accept a
# dict of arrays as a dict of pytrees.
PyTree: TypeAlias = Any
"""A tensor, or tuples, lists and dicts of pytrees."""

Features: TypeAlias = PyTree
"""The first argument of `model_fn`: a tensor, or a pytree of tensors."""

Labels: TypeAlias = PyTree
"""The second argument of `model_fn`: a tensor, a pytree of tensors, or
`None`."""

InputFn: TypeAlias = Callable[..., Any]
"""A function that returns a `tf.data.Dataset` or another kind of input. It may
have arguments such as `params` and `config`, which are passed by name."""

MetricFn: TypeAlias = Callable[..., Mapping[str, Any]]
"""A function of tensors that returns metrics by name."""
