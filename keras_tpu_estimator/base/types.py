"""Names of what users pass in, for annotations.

Nothing here needs a framework. Arrays on the devices are `jax.Array`, those on
the host `np.ndarray`; values that are yet to be checked are `object`.
"""

import os
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import TypeAlias

import numpy.typing as npt

# A file or directory of this machine, or its URL.
PathLike: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

# What becomes a tensor: an array of JAX, NumPy or TensorFlow, a number, or
# lists of these.
TensorLike: TypeAlias = npt.ArrayLike

# A tensor, or tuples, lists and dicts of nests. Their checkers know no such
# type: containers of one kind of leaf are no containers of another.
Nest: TypeAlias = Any
Features: TypeAlias = Nest
Labels: TypeAlias = Nest  # `None` if there are none.

# What users write. They take some arguments or all, by name, and are called
# with those that they have.
InputFn: TypeAlias = Callable[..., Any]  # Returns a Dataset, or a batch.
MetricFn: TypeAlias = Callable[..., Mapping[str, Any]]
