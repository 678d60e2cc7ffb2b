"""The values of the steps that a loop has made, on the devices."""

import dataclasses
from typing import Any, Self

import jax
import numpy as np

from keras_tpu_estimator.ground.base.types import Nest


@dataclasses.dataclass(frozen=True, eq=False)
class StepValues:
    """One value for each step of a loop, cut to the steps on the host.

    A loop has rows for as many steps as its program can make. NumPy sees only
    those of the steps that were made.

    Attributes:
        rows: Array of shape `[rows, ...]` on the devices.
        steps: The rows of the steps that were made.

    Example:

    >>> import numpy as np
    >>> values = StepValues(np.array([0, 1, 2, 0]), range(1, 3))
    >>> len(values), np.asarray(values).tolist()
    (2, [1, 2])
    """

    rows: jax.Array | np.ndarray
    steps: range

    @classmethod
    def of(cls, nest: Nest, steps: range) -> Nest:
        """Returns a nest of arrays as one of `StepValues`."""
        return jax.tree.map(lambda rows: cls(rows, steps), nest)

    @classmethod
    def whole(cls, values: Any) -> Self:
        """Returns values of steps, or an array of which all rows are some."""
        if isinstance(values, cls):
            return values
        rows = np.asarray(values)
        return cls(rows, range(len(rows)))

    def __len__(self) -> int:
        return len(self.steps)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        rows = np.asarray(self.rows)[self.steps.start : self.steps.stop]
        if dtype is not None:
            rows = rows.astype(dtype, copy=False)
        return np.array(rows) if copy else rows

    def block_until_ready(self) -> Self:
        """Waits until the devices have made the steps."""
        jax.block_until_ready(self.rows)
        return self
