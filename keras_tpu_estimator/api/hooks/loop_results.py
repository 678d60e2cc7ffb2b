"""The results of one loop, as all hooks read them."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from keras_tpu_estimator.files.summary.collecting import Collected

_NO_LOSS = np.full(1, np.nan, "float32")


@dataclasses.dataclass(frozen=True, eq=False)
class LoopResults:
    """The results of one loop, in one record that a loop replaces and never changes.

    All hooks therefore read the same step and loss, also while the next loop runs. The
    arrays may be on the devices. Reading one waits until the devices complete it.

    Attributes:
        step: The global step after the loop.
        losses: The losses of the loop's steps, in arrays of shape `[steps]`, one for
            each part of the loop. In evaluation, each loss is the mean of all steps
            up to it. NaN before the first loop.
        numbers: The global steps of the losses, in equal arrays, if the program
            assigns the global step; otherwise none.
        named: Other values that hooks requested, by name.
        reports: Numbers of the last step to report, by name.
        summaries: The summaries that `model_fn` recorded in the last step.
    """

    step: int
    losses: tuple[Any, ...] = (_NO_LOSS,)
    numbers: tuple[Any, ...] = ()
    named: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    reports: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    summaries: Sequence[Collected] = ()

    @functools.cached_property
    def losses_of_steps(self) -> np.ndarray:
        """The losses as one array."""
        return np.concatenate([np.asarray(part, "float32") for part in self.losses])

    @property
    def loss(self) -> np.float32:
        """The value of `"loss"` for hooks."""
        return self.last_loss

    @property
    def mean_loss(self) -> float:
        """The mean loss over the loop."""
        return float(self.last_loss)

    @property
    def last_loss(self) -> np.float32:
        """The loss of the last step."""
        last: np.float32 = np.asarray(self.losses[-1], "float32")[-1]
        return last

    def without_tensors(self) -> Self:
        """Returns the step and the losses, without the tensors of the last step."""
        return dataclasses.replace(self, named={}, reports={}, summaries=())

    def first_nan_step(self) -> int | None:
        """Returns the global step of the first loss that is NaN, or `None`."""
        losses = self.losses_of_steps
        nan_indices = np.flatnonzero(np.isnan(losses))
        if not len(nan_indices):
            return None
        if self.numbers:
            return int(np.concatenate(self.numbers)[nan_indices[0]])
        return self.step - len(losses) + 1 + int(nan_indices[0])


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingResults(LoopResults):
    """The results of a loop of `train`, which has a separate loss for each step.

    If `is_mean` is set, `loss` is the mean over the loop, or else that of the last
    step. In both cases it is NaN if the loss of any step is NaN.
    """

    is_mean: bool = False

    @functools.cached_property
    def loss(self) -> np.float32:
        """The value of `"loss"` for hooks."""
        mean = self.mean_loss
        return np.float32(mean) if self.is_mean or np.isnan(mean) else self.last_loss

    @functools.cached_property
    def mean_loss(self) -> float:
        """The mean loss over the steps of the loop."""
        return float(self.losses_of_steps.mean())
