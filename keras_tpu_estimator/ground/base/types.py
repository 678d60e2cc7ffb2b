"""Names, for annotations, of what users pass in."""

import os
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import TypeAlias

import numpy.typing as npt

PathLike: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""A path of a file or a directory, or, as a string, its URL."""

CheckpointLike: TypeAlias = PathLike | Mapping[str, Any]
"""What `load_checkpoint` opens: a path, or a dict of arrays."""

TensorLike: TypeAlias = npt.ArrayLike
"""What becomes a tensor: an array of JAX, NumPy or TensorFlow, a number, or
lists of these."""

# There is no type for it: a dict of arrays is no dict of nests to a checker.
Nest: TypeAlias = Any
"""A tensor, or tuples, lists and dicts of nests."""

Features: TypeAlias = Nest
"""What `model_fn` gets as its first argument: a tensor, or a nest of them."""

Labels: TypeAlias = Nest
"""What `model_fn` gets as its second argument: a tensor, a nest of them, or
`None`."""

InputFn: TypeAlias = Callable[..., Any]
"""A function that returns a `tf.data.Dataset`, or whatever else input can be.
It takes `params`, `config` and others by name, or some of them, or none."""

MetricFn: TypeAlias = Callable[..., Mapping[str, Any]]
"""A function of tensors that returns metrics by name."""
