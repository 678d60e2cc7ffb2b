"""Steps of data on the host."""

import dataclasses
from typing import Any

import jax
import numpy as np


@dataclasses.dataclass(frozen=True)
class Example:
    """One step's features and labels, or a part of them for some cores.

    Attributes:
        features: Nest of NumPy arrays, batch first.
        labels: The same, or `None`.
    """

    features: Any
    labels: Any

    @property
    def leaves(self) -> list[tuple[str, np.ndarray]]:
        """All arrays with names such as `features['image']`."""
        nests = (("features", self.features), ("labels", self.labels))
        return [
            (name + jax.tree_util.keystr(path), leaf)
            for name, nest in nests
            for path, leaf in jax.tree_util.tree_leaves_with_path(nest)
        ]

    @property
    def size(self) -> int:
        """Length of the batch."""
        return jax.tree.leaves(self.features)[0].shape[0]

    @property
    def bytes(self) -> int:
        """Bytes in all arrays."""
        leaves = jax.tree.leaves((self.features, self.labels))
        return sum(leaf.nbytes for leaf in leaves)

    @property
    def signature(self) -> Any:
        """Equal for examples of one structure, with equal shapes and dtypes."""
        leaves, structure = jax.tree.flatten((self.features, self.labels))
        return structure, *((leaf.shape, leaf.dtype) for leaf in leaves)


@dataclasses.dataclass(frozen=True)
class Batch:
    """Some steps of equal shapes, stacked.

    Attributes:
        features: Nest of NumPy arrays of shape `[steps, batch, ...]`.
        labels: The same, or `None`.
    """

    features: Any
    labels: Any

    @property
    def steps(self) -> int:
        """Number of steps."""
        return jax.tree.leaves(self.features)[0].shape[0]

    @property
    def examples(self) -> int:
        """Examples in one step."""
        return jax.tree.leaves(self.features)[0].shape[1]
