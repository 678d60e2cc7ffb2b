"""The Adam optimizer of BERT."""

import re
from collections.abc import Iterable
from typing import Any

import keras
from keras import ops

from keras_tpu_estimator.base.common.shown import shown


@keras.saving.register_keras_serializable("keras_tpu_estimator")
class AdamWeightDecay(keras.optimizers.Optimizer):
    """Adam without bias correction, with weight decay, as in BERT.

    The counterpart of `AdamWeightDecayOptimizer` of BERT's `optimization.py`:
    `w -= learning_rate * (m / (sqrt(v) + epsilon) + weight_decay_rate * w)`.
    `keras.optimizers.AdamW` corrects `m` and `v` for their start at zero, so
    that its first steps differ.

    Args:
        learning_rate: A float, a schedule, or any other learning rate that a
            Keras optimizer accepts in a `model_fn`.
        weight_decay_rate: The share of a weight that is subtracted, times the
            learning rate. Defaults to 0.0.
        beta_1: Decay rate of the mean of gradients. Defaults to 0.9.
        beta_2: Decay rate of the mean of squared gradients. Defaults to 0.999.
        epsilon: Added to the root of the mean square. Defaults to 1e-6.
        exclude_from_weight_decay: Regular expressions. Variables whose path
            contains a match do not decay. Defaults to `None`, for none.
        **kwargs: Arguments of every Keras optimizer, such as `name`,
            `global_clipnorm`, `use_ema` and `gradient_accumulation_steps`.

    Raises:
        TypeError: `exclude_from_weight_decay` is not a list of str.
        ValueError: An element is not a regular expression, or `weight_decay` is
            given.

    Example:

    >>> import keras
    >>> import keras_tpu_estimator as kte
    >>> kernel = keras.Variable([2.0], name="kernel")
    >>> optimizer = kte.optimizers.AdamWeightDecay(
    ...     0.1,
    ...     weight_decay_rate=0.01,
    ...     exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
    ... )
    >>> optimizer.apply([keras.ops.ones(1)], [kernel])
    >>> print(kernel.numpy().round(4))  # 2 - 0.1 * (0.1 / 0.0316 + 0.02)
    [1.6818]
    """

    def __init__(
        self,
        learning_rate: Any,
        weight_decay_rate: float = 0.0,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        exclude_from_weight_decay: Iterable[str] | None = None,
        **kwargs: Any,
    ):
        if kwargs.pop("weight_decay", None) is not None:
            raise ValueError(
                f"{type(self).__name__} has `weight_decay_rate`, which is "
                "part of its update. Received `weight_decay`, which Keras "
                "would subtract beforehand. Pass weight_decay_rate=..."
            )
        super().__init__(learning_rate, **kwargs)
        self.weight_decay_rate = weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.not_decayed = checked(
            "exclude_from_weight_decay", exclude_from_weight_decay
        )

    def build(self, variables: list[keras.Variable]) -> None:
        """Creates two slots for each variable."""
        if self.built:
            return
        super().build(variables)
        self._momentums, self._velocities = self.add_optimizer_variables(
            variables, ["momentum", "velocity"]
        )

    def update_step(
        self, gradient: Any, variable: keras.Variable, learning_rate: Any
    ) -> None:
        """Updates one variable and its slots."""
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        self.assign_sub(variable, rate * self.direction(gradient, variable))

    def direction(self, gradient: Any, variable: keras.Variable) -> Any:
        """Returns the direction, which is multiplied by the learning rate.

        Args:
            gradient: The gradient, which updates the slots.
            variable: The variable of the gradient.
        """
        m, v = self.moments(gradient, variable)
        direction = m / (ops.sqrt(v) + self.epsilon)
        if match(self.not_decayed, variable):
            return direction
        return direction + self.weight_decay_rate * variable

    def moments(self, gradient: Any, variable: keras.Variable) -> tuple[Any, Any]:
        """Returns the means of gradients and of their squares, with this one.

        Args:
            gradient: The gradient.
            variable: The variable of the gradient.
        """
        index = self._get_variable_index(variable)
        means = []
        for slot, new, beta in (
            (self._momentums[index], gradient, self.beta_1),
            (self._velocities[index], ops.square(gradient), self.beta_2),
        ):
            means.append(beta * slot + (1 - beta) * new)
            self.assign(slot, means[-1])
        m, v = means
        return m, v

    def exclude_from_weight_decay(
        self,
        var_list: Iterable[keras.Variable] | None = None,
        var_names: Iterable[str] | None = None,
    ) -> None:
        """Excludes more variables from weight decay.

        Args:
            var_list: Variables. Defaults to `None`.
            var_names: Regular expressions that are searched in paths. Defaults
                to `None`.

        Raises:
            TypeError: `var_names` is not a list of str.
            ValueError: An element is not a regular expression.
        """
        paths = [f"^{re.escape(variable.path)}$" for variable in var_list or ()]
        names = checked("var_names", var_names)
        self.not_decayed = [*self.not_decayed, *paths, *names]

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration of the optimizer, without its slots."""
        config = super().get_config()
        del config["weight_decay"]
        return {
            **config,
            "weight_decay_rate": self.weight_decay_rate,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "exclude_from_weight_decay": list(self.not_decayed),
        }


def checked(argument: str, patterns: Iterable[str] | None) -> list[str]:
    """Returns a user's regular expressions as a checked list."""
    if isinstance(patterns, str):
        raise TypeError(
            f"`{argument}` must be a list of regular expressions. Received: "
            f"{patterns!r}. Write [{patterns!r}]."
        )
    listed = list(patterns or ())
    for pattern in listed:
        if not isinstance(pattern, str):
            raise TypeError(
                f"`{argument}` must contain regular expressions as str. "
                f"Received: {shown(pattern)}. To exclude a variable, pass its "
                "`path`."
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"`{argument}` must contain regular expressions. Received: "
                f"{pattern!r}, which is invalid: {error}. Escape it with "
                "re.escape if it is a name."
            ) from error
    return listed


def match(patterns: Iterable[str], variable: keras.Variable) -> bool:
    """Returns whether a variable's path contains a match of a pattern."""
    return any(re.search(pattern, variable.path) for pattern in patterns)
