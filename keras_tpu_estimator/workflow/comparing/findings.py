"""The records of a comparison, and the differences of values of two programs."""

import dataclasses
from typing import Any

import numpy as np

from keras_tpu_estimator.workflow.comparing.rounding import Difference, of_runs


@dataclasses.dataclass(frozen=True)
class Compared:
    """One number or array of both programs.

    Attributes:
        kind: What it is, such as "loss" or "gradient".
        name: Its name, such as the path of a variable in the new program; may be empty.
        step: The number of the step, from 1, or `None`.
    """

    kind: str
    name: str
    step: int | None
    difference: Difference


@dataclasses.dataclass(frozen=True)
class Finding:
    """The first difference, with what explains it."""

    compared: Compared
    explanation: str


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Everything that was compared up to the first difference, which may be `None`."""

    compared: tuple[Compared, ...]
    finding: Finding | None = None
    notes: tuple[str, ...] = ()


def of_values(old: Any, new: Any, again: Any) -> Difference:
    old, new, again = map(np.asarray, (old, new, again))
    if old.dtype.kind in "fiub" and new.dtype.kind in "fiub":
        return of_runs(old, new, again)
    is_same = old.shape == new.shape and bool(np.all(old == new))
    return Difference(0.0 if is_same else float("inf"))
