"""Arrays that a program has, read as those of a checkpoint."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.files.formats.reader import CheckpointReader
from keras_tpu_estimator.files.formats.reader import Stored

# What NumPy says of dtypes that another package registered, such as bfloat16.
_REGISTERED = 2


class ArraysReader(CheckpointReader):
    """Reads a dict, or a tree of dicts, by paths such as 'dense/kernel'."""

    def __init__(self, arrays: Mapping[str, Any]):
        self._values: dict[str, jax.Array | np.ndarray] = {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(dict(arrays)):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            if name in self._values:
                raise ValueError(
                    "The dict should have one array of each name. Received "
                    f"two of the name {name!r}."
                )
            self._values[name] = _array(name, leaf)
        listed = {
            name: Stored(value.shape, np.dtype(value.dtype))
            for name, value in self._values.items()
        }
        super().__init__("a dict of arrays", listed)

    def _read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        # Copies, for the program may go on to write to its own.
        return {name: np.array(self._values[name]) for name in names}


def _array(name: str, value: Any) -> jax.Array | np.ndarray:
    """An array of NumPy, or that of JAX, which is not fetched yet."""
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    kind, is_builtin = (
        getattr(array.dtype, each, None) for each in ("kind", "isbuiltin")
    )
    if kind is None or (kind not in "biufc" and is_builtin != _REGISTERED):
        raise ValueError(
            f"The dict should hold arrays of numbers. Received at {name!r}: a "
            f"{type(value).__name__} of dtype {array.dtype}."
        )
    return array
