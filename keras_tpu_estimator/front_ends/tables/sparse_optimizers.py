"""Optimizers of embedding tables that can set weights to zero."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from keras_tpu_estimator.front_ends.tables.parameters import (
    OptimizationParameters,
)
from keras_tpu_estimator.front_ends.tables.parameters import Rows
from keras_tpu_estimator.front_ends.tables.parameters import Slots

_NOT_NEGATIVE = "zero or positive"


@dataclasses.dataclass(frozen=True)
class ProximalAdagradParameters(OptimizationParameters):
    """Adagrad with penalties that set weights to zero.

    Args:
        learning_rate: The learning rate.
        initial_accumulator: The initial value of sums of squares; positive.
            Defaults to 0.1.
        l1_regularization_strength: Zero or positive. Defaults to 0.
        l2_regularization_strength: Zero or positive. Defaults to 0. For all
            other arguments, see `OptimizationParameters`.

    Example:

    >>> dict(ProximalAdagradParameters(0.1).slots)
    {'ProximalAdagrad': 0.1}
    """

    initial_accumulator: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0

    @property
    def slots(self) -> Mapping[str, float]:
        """The initial values of the sums of squared gradients."""
        return {"ProximalAdagrad": self.initial_accumulator}

    def _moved(
        self, rows: Rows, slots: Slots, gradient: Rows, rate: jax.Array
    ) -> tuple[Rows, Slots]:
        squares = slots["ProximalAdagrad"] + gradient**2
        rates = rate / jnp.sqrt(squares)
        moved = rows - rates * gradient
        least = rates * self.l1_regularization_strength
        shrunk = jnp.sign(moved) * jnp.maximum(jnp.abs(moved) - least, 0)
        moved = shrunk / (1 + rates * self.l2_regularization_strength)
        return moved, {"ProximalAdagrad": squares}

    @property
    def _expected(self) -> Mapping[str, tuple[bool, str]]:
        return {
            "initial_accumulator": (self.initial_accumulator > 0, "positive"),
            **_strengths(self),
        }


@dataclasses.dataclass(frozen=True)
class FtrlParameters(OptimizationParameters):
    """FTRL-Proximal for the rows of embedding tables.

    At a learning rate of 0, such as the first of a warm-up, rows and their
    optimizer state do not change.

    Args:
        learning_rate: The learning rate.
        learning_rate_power: Zero or negative. Defaults to -0.5.
        initial_accumulator_value: The initial value of sums of squares; zero or
            positive. Defaults to 0.1.
        l1_regularization_strength: Zero or positive. Defaults to 0.
        l2_regularization_strength: Zero or positive. Defaults to 0.
        multiply_linear_by_learning_rate: Whether the slot `Ftrl_1` is stored
            multiplied by the learning rate. Defaults to `False`.
        beta: Added to the power of the sum of squares. Defaults to 0.
        allow_zero_accumulator: Accepted for compatibility. Defaults to
            `False`. For all other arguments, see `OptimizationParameters`.

    Example:

    >>> dict(FtrlParameters(0.1).slots)
    {'Ftrl': 0.1, 'Ftrl_1': 0.0}
    """

    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    multiply_linear_by_learning_rate: bool = False
    beta: float = 0.0
    allow_zero_accumulator: bool = False

    @property
    def slots(self) -> Mapping[str, float]:
        """The initial values of the sums of squared gradients, and the linear
        terms.
        """
        return {"Ftrl": self.initial_accumulator_value, "Ftrl_1": 0.0}

    def _moved(
        self, rows: Rows, slots: Slots, gradient: Rows, rate: jax.Array
    ) -> tuple[Rows, Slots]:
        power = -self.learning_rate_power
        squares, linear = slots["Ftrl"], slots["Ftrl_1"]
        # Linear terms would be infinite at such a rate.
        is_still = rate == 0
        rate = jnp.where(is_still, 1.0, rate)
        summed = squares + gradient**2
        # All of this may be multiplied by the rate.
        scale = rate if self.multiply_linear_by_learning_rate else 1.0
        grown = (summed**power - squares**power) * (scale / rate)
        linear = linear + scale * gradient - grown * rows
        least = scale * self.l1_regularization_strength
        divisor = (self.beta + summed**power) * (scale / rate)
        divisor += 2 * scale * self.l2_regularization_strength
        # It is zero as long as gradients and the accumulator are zero.
        is_zero = divisor == 0
        moved = jnp.clip(linear, -least, least) - linear
        moved = jnp.where(is_zero, 0.0, moved / jnp.where(is_zero, 1, divisor))

        def unless_still(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(is_still, old, new)

        return unless_still(moved, rows), {
            "Ftrl": unless_still(summed, squares),
            "Ftrl_1": unless_still(linear, slots["Ftrl_1"]),
        }

    @property
    def _expected(self) -> Mapping[str, tuple[bool, str]]:
        return {
            "learning_rate_power": (
                self.learning_rate_power <= 0,
                "zero or negative",
            ),
            "initial_accumulator_value": (
                self.initial_accumulator_value >= 0,
                _NOT_NEGATIVE,
            ),
            **_strengths(self),
        }


def _strengths(
    parameters: FtrlParameters | ProximalAdagradParameters,
) -> dict[str, tuple[bool, str]]:
    return {
        name: (getattr(parameters, name) >= 0, _NOT_NEGATIVE)
        for name in (
            "l1_regularization_strength",
            "l2_regularization_strength",
        )
    }
