"""Batches on other axes than the first."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator.engine.inputs.batch import Batch
from keras_tpu_estimator.ground.base.types import Features, Labels


@dataclasses.dataclass(frozen=True)
class BatchAxes:
    """The batch axis of each tensor, features first.

    Attributes:
        axes: One for each tensor, or `None` for the first axis of all.
        shares: The cores that must be able to share each batch evenly.
            Defaults to 1.
    """

    axes: Sequence[int] | None = None
    shares: int = 1

    def to_front(self, batch: Batch) -> Batch:
        """Moves the batch axes of an example to the front.

        Raises:
            ValueError: There are more or fewer tensors than axes, or a tensor
                cannot be split along its axis.
        """
        if self.axes is None:
            return batch
        leaves, structure = jax.tree.flatten((batch.features, batch.labels))
        # Those of labels may be left over, in prediction.
        excess = len(self.axes) - len(leaves)
        if excess < 0 or (excess and batch.labels is not None):
            raise ValueError(
                "`batch_axis` should have one axis for each tensor of features"
                f" and labels. Expected {len(leaves)}. Received "
                f"{len(self.axes)}: {list(self.axes)}"
            )
        for (name, leaf), axis in zip(batch.leaves, self.axes, strict=False):
            self._check_split(name, leaf, axis)
        moved = [
            np.moveaxis(leaf, axis, 0)
            for leaf, axis in zip(leaves, self.axes, strict=False)
        ]
        return Batch(*jax.tree.unflatten(structure, moved))

    def from_front(self, features: Features, labels: Labels) -> tuple[Features, Labels]:
        """Moves the batch axes back, of tensors under a trace."""
        if self.axes is None:
            return features, labels
        leaves, structure = jax.tree.flatten((features, labels))
        moved = [
            jnp.moveaxis(leaf, 0, axis)
            for leaf, axis in zip(leaves, self.axes, strict=False)
        ]
        return jax.tree.unflatten(structure, moved)

    def _check_split(self, name: str, leaf: np.ndarray, axis: int) -> None:
        if not -leaf.ndim <= axis < leaf.ndim:
            raise ValueError(
                f"{name} should have the axis that `batch_axis` gives it. "
                f"Expected axis {axis}. Received shape {leaf.shape}."
            )
        if leaf.shape[axis] % self.shares:
            raise ValueError(
                f"{name} should be divisible by the number of cores, "
                f"{self.shares}, along axis {axis} of `batch_axis`. Received "
                f"shape {leaf.shape}. Drop what is left over in input_fn."
            )
