"""What a checkpoint says of a variable before its value is read."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Stored:
    """A variable in a checkpoint.

    Attributes:
        shape: Its shape.
        dtype: Its NumPy dtype; `object` for strings.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
