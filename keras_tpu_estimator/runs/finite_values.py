"""Whether trained values on their way into a checkpoint are finite."""

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np

from keras_tpu_estimator.files.formats.hdf5.writer import ShardedVariable
from keras_tpu_estimator.ground.base.index_ranges import IndexRanges
from keras_tpu_estimator.spec.hooks.nan_tensor import NanLossDuringTrainingError


class FiniteValues:
    """Looks at the values of a save.

    Args:
        trained: The paths that are looked at.
        step: The step that they are of.

    Attributes:
        step: The same.
        trained: The same.
    """

    def __init__(self, trained: set[str], step: int):
        self.step = step
        self.trained = trained
        self._not_finite: set[str] = set()

    @property
    def not_finite(self) -> str | None:
        """The first path of one that is not, of those that were watched."""
        return min(self._not_finite, default=None)

    def watched(
        self, variables: Mapping[str, ShardedVariable]
    ) -> dict[str, ShardedVariable]:
        """Variables whose parts are looked at when they are written."""
        return {
            path: self._watched(path, each) if path in self.trained else each
            for path, each in variables.items()
        }

    def look_at(self, parts: Mapping[str, Iterable[np.ndarray]]) -> None:
        """Looks at parts of trained variables that were fetched, by path."""
        for path in parts.keys() & self.trained:
            if not all(map(_is_finite, parts[path])):
                self._not_finite.add(path)

    def first_not_finite(self, values: Mapping[str, np.ndarray]) -> str | None:
        """The first path of one that is not, of whole values."""
        paths = sorted(values.keys() & self.trained)
        return next((p for p in paths if not _is_finite(values[p])), None)

    def raise_if_any(self, found: Iterable[str | None]) -> None:
        """Raises if some host has found a path.

        Raises:
            NanLossDuringTrainingError: It has.
        """
        path = next(filter(None, found), None)
        if path is None:
            return
        raise NanLossDuringTrainingError(
            f"The trained variable {path!r} is not finite after step "
            f"{self.step}, though the loss is. Expected numbers. Received NaN "
            "or infinity, so nothing was saved, and the latest checkpoint is "
            "one from before. Lower the learning rate, clip the gradients, or "
            "look for the derivative of a square root or a norm at 0: "
            "RunConfig(debug_nans=True) finds the operation."
        )

    def _watched(self, path: str, variable: ShardedVariable) -> ShardedVariable:
        def part(box: IndexRanges) -> np.ndarray:
            value = variable.part(box)
            if not _is_finite(value):
                self._not_finite.add(path)
            return value

        return dataclasses.replace(variable, part=part)


def _is_finite(value: np.ndarray) -> bool:
    with np.errstate(all="ignore"):
        # A finite sum, which is quick, has finite terms only.
        return bool(np.isfinite(value.sum()) or np.isfinite(value).all())
