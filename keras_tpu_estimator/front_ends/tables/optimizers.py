"""Optimizers of embedding tables, by the original's parameters."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from keras_tpu_estimator.front_ends.tables.parameters import (
    OptimizationParameters,
    Rows,
    Slots,
)


@dataclasses.dataclass(frozen=True)
class StochasticGradientDescentParameters(OptimizationParameters):
    """Gradient descent for the rows of embedding tables.

    Args:
        learning_rate: The learning rate. For all other arguments, see
            `OptimizationParameters`.

    Example:

    >>> StochasticGradientDescentParameters(0.1).learning_rate
    0.1
    """

    def _moved(
        self, rows: Rows, slots: Slots, gradient: Rows, rate: jax.Array
    ) -> tuple[Rows, Slots]:
        return rows - rate * gradient, slots


@dataclasses.dataclass(frozen=True)
class AdagradParameters(OptimizationParameters):
    """Adagrad for the rows of embedding tables.

    Args:
        learning_rate: The learning rate.
        initial_accumulator: The initial value of sums of squares; positive.
            Defaults to 0.1. For all other arguments, see
            `OptimizationParameters`.

    Example:

    >>> dict(AdagradParameters(0.1).slots)
    {'Adagrad': 0.1}
    """

    initial_accumulator: float = 0.1

    @property
    def slots(self) -> Mapping[str, float]:
        """The initial values of the sums of squared gradients."""
        return {"Adagrad": self.initial_accumulator}

    def _moved(
        self, rows: Rows, slots: Slots, gradient: Rows, rate: jax.Array
    ) -> tuple[Rows, Slots]:
        squares = slots["Adagrad"] + gradient**2
        moved = rows - rate * gradient / jnp.sqrt(squares)
        return moved, {"Adagrad": squares}

    @property
    def _expected(self) -> Mapping[str, tuple[bool, str]]:
        return {"initial_accumulator": (self.initial_accumulator > 0, "positive")}


@dataclasses.dataclass(frozen=True)
class AdamParameters(OptimizationParameters):
    """Lazy Adam: the moments of unused rows do not change.

    As in the original, the moments are not corrected for their start at zero.
    To correct them, set a `learning_rate_fn` that returns `rate * sqrt(1 -
    beta2**t) / (1 - beta1**t)` with `t = step + 1`.

    Args:
        learning_rate: The learning rate.
        beta1: The decay of the first moment, in [0, 1). Defaults to 0.9.
        beta2: The decay of the second moment. Defaults to 0.999.
        epsilon: Avoids division by zero; positive. Defaults to 1e-8.
        lazy_adam: Must be `True`, which is the default.
        sum_inside_sqrt: Whether the square of `epsilon` is added to the second
            moment before its root is taken; otherwise `epsilon` is added to the
            root. Defaults to `True`. For all other arguments, see
            `OptimizationParameters`.

    Raises:
        NotImplementedError: `lazy_adam` is `False`.

    Example:

    >>> dict(AdamParameters(0.1).slots)
    {'Adam/m': 0.0, 'Adam/v': 0.0}
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    lazy_adam: bool = True
    sum_inside_sqrt: bool = True

    @property
    def slots(self) -> Mapping[str, float]:
        """The initial values of the moments."""
        return {"Adam/m": 0.0, "Adam/v": 0.0}

    def _moved(
        self, rows: Rows, slots: Slots, gradient: Rows, rate: jax.Array
    ) -> tuple[Rows, Slots]:
        first = self.beta1 * slots["Adam/m"] + (1 - self.beta1) * gradient
        second = self.beta2 * slots["Adam/v"] + (1 - self.beta2) * gradient**2
        root = (
            jnp.sqrt(second + self.epsilon**2)
            if self.sum_inside_sqrt
            else jnp.sqrt(second) + self.epsilon
        )
        return rows - rate * first / root, {"Adam/m": first, "Adam/v": second}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lazy_adam:
            raise NotImplementedError(
                "AdamParameters must be lazy: only used rows are updated. "
                "Received: lazy_adam=False, with which each step would "
                "update the complete table. Leave it out, or use "
                "keras.layers.Embedding in model_fn."
            )

    @property
    def _expected(self) -> Mapping[str, tuple[bool, str]]:
        return {
            **{
                name: (0 <= getattr(self, name) < 1, "in [0, 1)")
                for name in ("beta1", "beta2")
            },
            "epsilon": (self.epsilon > 0, "positive"),
            "use_gradient_accumulation": (
                self.lazy_adam or self.use_gradient_accumulation,
                "True without lazy_adam",
            ),
        }


@dataclasses.dataclass(frozen=True)
class MomentumParameters(OptimizationParameters):
    """Gradient descent with momentum for the used rows.

    Args:
        learning_rate: The learning rate.
        momentum: The share of the last update that is kept.
        use_nesterov: Whether to use Nesterov momentum. Defaults to `False`. For
            all other arguments, see `OptimizationParameters`.

    Example:

    >>> dict(MomentumParameters(0.1, 0.9).slots)
    {'Momentum': 0.0}
    """

    momentum: float
    use_nesterov: bool = False

    @property
    def slots(self) -> Mapping[str, float]:
        """The initial value of the momentum."""
        return {"Momentum": 0.0}

    def _moved(
        self, rows: Rows, slots: Slots, gradient: Rows, rate: jax.Array
    ) -> tuple[Rows, Slots]:
        momentum = self.momentum * slots["Momentum"] + gradient
        change = gradient + self.momentum * momentum if self.use_nesterov else momentum
        return rows - rate * change, {"Momentum": momentum}


@dataclasses.dataclass(frozen=True)
class RMSPropParameters(OptimizationParameters):
    """RMSProp for the rows of embedding tables.

    Args:
        learning_rate: The learning rate.
        rho: The decay of the mean square.
        momentum: The share of the last update that is kept.
        epsilon: Added to the mean square before its root is taken; positive.
            For all other arguments, see `OptimizationParameters`.

    Example:

    >>> dict(RMSPropParameters(0.1, 0.9, 0.0, 1e-8).slots)
    {'RMSProp/ms': 0.0, 'RMSProp/mom': 0.0}
    """

    rho: float
    momentum: float
    epsilon: float

    @property
    def slots(self) -> Mapping[str, float]:
        """The initial values of the mean squares and the momentum."""
        return {"RMSProp/ms": 0.0, "RMSProp/mom": 0.0}

    def _moved(
        self, rows: Rows, slots: Slots, gradient: Rows, rate: jax.Array
    ) -> tuple[Rows, Slots]:
        squares = self.rho * slots["RMSProp/ms"] + (1 - self.rho) * gradient**2
        change = rate * gradient / jnp.sqrt(squares + self.epsilon)
        change += self.momentum * slots["RMSProp/mom"]
        return rows - change, {"RMSProp/ms": squares, "RMSProp/mom": change}

    @property
    def _expected(self) -> Mapping[str, tuple[bool, str]]:
        # Otherwise elements without a gradient would be divided by zero.
        return {"epsilon": (self.epsilon > 0, "positive")}


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
