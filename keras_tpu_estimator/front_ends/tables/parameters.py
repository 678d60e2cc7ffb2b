"""The base class of optimizers of embedding tables."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from keras_tpu_estimator.base.common.field_checks import is_number

Rows: TypeAlias = jax.Array
Slots: TypeAlias = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class OptimizationParameters(abc.ABC):
    """The update of the rows of a table from their gradients.

    Only rows that a batch uses are updated, each once: gradients of repeated
    ids are summed first.

    Args:
        learning_rate: The learning rate, unless the table has another.
        clip_weight_min: Lower limit of weights after an update. Defaults to
            `None`, for none.
        clip_weight_max: Upper limit of weights. Defaults to `None`, for none.
        weight_decay_factor: The share of used rows that is subtracted before
            the update. Defaults to `None`, for none.
        multiply_weight_decay_factor_by_learning_rate: Whether that share is
            multiplied by the learning rate. Defaults to `None`, for `False`.
        clip_gradient_min: Lower limit of elements of a summed gradient.
            Defaults to `None`, for none.
        clip_gradient_max: Upper limit of these elements. Defaults to `None`,
            for none.
        use_gradient_accumulation: Accepted for compatibility; gradients are
            always summed over a batch. Defaults to `True`.

    Raises:
        ValueError: A value is out of its range, or gradients are clipped but
            not summed.
        TypeError: A value is not a number.
    """

    learning_rate: float
    _: dataclasses.KW_ONLY
    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = None
    clip_weight_max: float | None = None
    weight_decay_factor: float | None = None
    multiply_weight_decay_factor_by_learning_rate: bool | None = None
    clip_gradient_min: float | None = None
    clip_gradient_max: float | None = None

    def __post_init__(self) -> None:
        for name in ("learning_rate", "weight_decay_factor"):
            value = getattr(self, name)
            is_left_out = value is None and name != "learning_rate"
            if not (is_number(value) or is_left_out):
                raise TypeError(
                    f"`{name}` must be a number. Received: {value!r} of type "
                    f"{type(value).__name__}. Set "
                    "TableConfig.learning_rate_fn for a function of the step."
                )
        clips = (self.clip_gradient_min, self.clip_gradient_max)
        if not self.use_gradient_accumulation and clips != (None, None):
            raise ValueError(
                "Clipped gradients must be accumulated. Received: "
                f"use_gradient_accumulation=False and limits of {clips}. "
                "Leave one of them out."
            )
        for name, (is_right, expected) in self._expected.items():
            if not is_right:
                raise ValueError(
                    f"`{name}` of {type(self).__name__} must be {expected}. "
                    f"Received: {getattr(self, name)!r}. Change it."
                )

    @property
    def slots(self) -> Mapping[str, float]:
        """The optimizer state of each weight: initial values by slot name.

        Names are those of the original's checkpoints.
        """
        return {}

    def updated(
        self, rows: Rows, slots: Slots, gradient: Rows, rate: jax.Array
    ) -> tuple[Rows, Slots]:
        """Updates rows, of shape `[rows, dimension]`.

        Args:
            rows: The used rows.
            slots: Their optimizer state by name.
            gradient: Their gradient.
            rate: The learning rate of the step, as a scalar.
        """
        clipped = _clipped(gradient, self.clip_gradient_min, self.clip_gradient_max)
        if self.weight_decay_factor is not None:
            by_rate = self.multiply_weight_decay_factor_by_learning_rate
            factor = self.weight_decay_factor * (rate if by_rate else 1.0)
            rows = rows - factor * rows
        rows, slots = self._moved(rows, slots, clipped, rate)
        return _clipped(rows, self.clip_weight_min, self.clip_weight_max), slots

    @abc.abstractmethod
    def _moved(
        self, rows: Rows, slots: Slots, gradient: Rows, rate: jax.Array
    ) -> tuple[Rows, Slots]:
        """Returns the updated rows and slots."""

    @property
    def _expected(self) -> Mapping[str, tuple[bool, str]]:
        """Returns whether each field is valid, and its description."""
        return {}


def _clipped(x: Any, smallest: float | None, largest: float | None) -> Any:
    if smallest is None and largest is None:
        return x
    return jnp.clip(x, smallest, largest)
