"""Optimizers of embedding tables, by the original's parameters."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from keras_tpu_estimator.front_ends.tables.parameters import (
    OptimizationParameters,
)
from keras_tpu_estimator.front_ends.tables.parameters import Rows
from keras_tpu_estimator.front_ends.tables.parameters import Slots


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
        return {
            "initial_accumulator": (self.initial_accumulator > 0, "positive")
        }


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
        kept = self.momentum * slots["Momentum"] + gradient
        change = gradient + self.momentum * kept if self.use_nesterov else kept
        return rows - rate * change, {"Momentum": kept}


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
