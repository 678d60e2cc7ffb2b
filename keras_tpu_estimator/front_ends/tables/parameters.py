"""What the optimizers of tables have in common, and how they are set."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any
from typing import TypeAlias

import jax
import jax.numpy as jnp

from keras_tpu_estimator.ground.base.field_checks import is_number

Rows: TypeAlias = jax.Array
Slots: TypeAlias = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class OptimizationParameters(abc.ABC):
    """How the rows of a table are updated, from their gradients.

    Only rows that a batch uses are updated, each once: gradients of ids that
    come several times are summed before.

    Args:
        learning_rate: The learning rate, unless the table has another.
        clip_weight_min: The smallest weight that an update leaves. Defaults to
            `None`, for any.
        clip_weight_max: The largest one.
        weight_decay_factor: The share of used rows that is taken away before
            the update. Defaults to `None`, for none.
        multiply_weight_decay_factor_by_learning_rate: Whether that share is
            multiplied by the learning rate. Defaults to `None`, for no.
        clip_gradient_min: The smallest element of a summed gradient. Defaults
            to `None`, for any.
        clip_gradient_max: The largest one.
        use_gradient_accumulation: Accepted for compatibility: gradients are
            always summed over a batch. Defaults to `True`.

    Raises:
        ValueError: A value is out of its range, or gradients are to be clipped
            but not summed.
        TypeError: A value is no number.
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
                    f"`{name}` should be a number. Received: {value!r} of type "
                    f"{type(value).__name__}. Set TableConfig.learning_rate_fn "
                    "for a function of the step."
                )
        clips = (self.clip_gradient_min, self.clip_gradient_max)
        if not self.use_gradient_accumulation and clips != (None, None):
            raise ValueError(
                "Gradients that are clipped should be accumulated. Received: "
                "use_gradient_accumulation=False and limits of "
                f"{clips}. Leave one of them out."
            )
        for name, (is_right, expected) in self._expected.items():
            if not is_right:
                raise ValueError(
                    f"`{name}` of {type(self).__name__} should be {expected}. "
                    f"Received: {getattr(self, name)!r}. Change it."
                )

    @property
    def slots(self) -> Mapping[str, float]:
        """What is kept for each weight: its name, after the table's, and start.

        Names are those of the original's checkpoints.
        """
        return {}

    def updated(
        self, rows: Rows, slots: Slots, gradient: Rows, rate: jax.Array
    ) -> tuple[Rows, Slots]:
        """Updates rows, of shape `[rows, dimension]`.

        Args:
            rows: Those that were used.
            slots: What is kept for them, by name.
            gradient: Theirs.
            rate: The learning rate of the step, as a scalar.
        """
        clipped = _clipped(
            gradient, self.clip_gradient_min, self.clip_gradient_max
        )
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
        """The update itself."""

    @property
    def _expected(self) -> Mapping[str, tuple[bool, str]]:
        """By field, whether its value is right, and what it should be."""
        return {}


def _clipped(x: Any, smallest: float | None, largest: float | None) -> Any:
    if smallest is None and largest is None:
        return x
    return jnp.clip(x, smallest, largest)
