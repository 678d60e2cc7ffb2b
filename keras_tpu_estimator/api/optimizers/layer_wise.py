"""The LARS and LAMB optimizers: layer-wise rates for large batches."""

from collections.abc import Iterable
from typing import Any

import keras
from keras import ops

from keras_tpu_estimator.api.optimizers import adam_weight_decay
from keras_tpu_estimator.api.optimizers.adam_weight_decay import (
    AdamWeightDecay,
)


@keras.saving.register_keras_serializable("keras_tpu_estimator")
class LARS(keras.optimizers.Optimizer):
    """Momentum whose rate for each variable is proportional to its length.

    [Large Batch Training of Convolutional Networks](
    https://arxiv.org/abs/1708.03888), algorithm 1, as in ResNet
    implementations. Weight decay is part of the update, so the loss needs none;
    in `tf.contrib.opt.LARSOptimizer` it only changed the rate.

    Args:
        learning_rate: As in every Keras optimizer; for large batches, numbers
            such as 10.0 after a warm-up are usual.
        momentum: The share of the previous step that is kept. Defaults to 0.9.
        weight_decay: The factor of the variable that is added to the gradient.
            Defaults to 0.0001.
        eeta: The trust coefficient. Defaults to 0.001.
        epsilon: Added to the divisor of the rate. Defaults to 0.0.
        skip_list: Regular expressions. Variables whose path contains a match
            have plain momentum, without decay. Defaults to `None`, for none;
            usual is `["batch_normalization", "bias"]`.
        use_nesterov: Whether to use Nesterov momentum. Defaults to `False`.
        **kwargs: Arguments of every Keras optimizer, such as `name`,
            `global_clipnorm`, `use_ema` and `gradient_accumulation_steps`.

    Raises:
        TypeError: `skip_list` is not a list of str.
        ValueError: An element is not a regular expression.

    Example:

    >>> import keras
    >>> import keras_tpu_estimator as kte
    >>> kernel = keras.Variable([3.0, 4.0], name="kernel")
    >>> optimizer = kte.optimizers.LARS(1.0, weight_decay=0.0, eeta=0.1)
    >>> optimizer.apply([keras.ops.array([0.0, 7.0])], [kernel])
    >>> kernel.numpy().tolist()  # By a tenth of its length.
    [3.0, 3.5]
    """

    def __init__(  # noqa: PLR0913 - the original's arguments
        self,
        learning_rate: Any,
        momentum: float = 0.9,
        weight_decay: float = 0.0001,
        eeta: float = 0.001,
        epsilon: float = 0.0,
        skip_list: Iterable[str] | None = None,
        use_nesterov: bool = False,
        **kwargs: Any,
    ):
        # Keras would subtract its own `weight_decay` beforehand.
        super().__init__(learning_rate, **kwargs)
        self.momentum = momentum
        self.weight_decay_rate = weight_decay
        self.eeta = eeta
        self.epsilon = epsilon
        self.skip_list = adam_weight_decay.checked("skip_list", skip_list)
        self.use_nesterov = use_nesterov

    def build(self, variables: list[keras.Variable]) -> None:
        """Creates a slot for each variable."""
        if self.built:
            return
        super().build(variables)
        self._momentums = self.add_optimizer_variables(variables, "momentum")

    def update_step(
        self, gradient: Any, variable: keras.Variable, learning_rate: Any
    ) -> None:
        """Updates one variable and its slot."""
        rate = ops.cast(learning_rate, variable.dtype)
        push = rate * self._scaled(ops.cast(gradient, variable.dtype), variable)
        slot = self._momentums[self._get_variable_index(variable)]
        step = self.momentum * slot + push
        self.assign(slot, step)
        if self.use_nesterov:
            step = self.momentum * step + push
        self.assign_sub(variable, step)

    def _scaled(self, gradient: Any, variable: keras.Variable) -> Any:
        """Returns the gradient with decay, times the local rate."""
        if adam_weight_decay.match(self.skip_list, variable):
            return gradient
        norms = norm(variable), norm(gradient)
        divisor = norms[1] + self.weight_decay_rate * norms[0] + self.epsilon
        local = where_positive(norms, self.eeta * norms[0] / divisor)
        return local * (gradient + self.weight_decay_rate * variable)

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration of the optimizer, without its slots."""
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "weight_decay": self.weight_decay_rate,
            "eeta": self.eeta,
            "epsilon": self.epsilon,
            "skip_list": list(self.skip_list),
            "use_nesterov": self.use_nesterov,
        }


def norm(x: Any) -> Any:
    """Returns the Euclidean norm over all elements, as a scalar."""
    return ops.sqrt(ops.sum(ops.square(x)))


def where_positive(norms: tuple[Any, Any], ratio: Any) -> Any:
    """Returns a ratio of norms, or 1 where one of them is zero, because a ratio of zero
    would keep weights at zero that start there.
    """
    are_positive = ops.logical_and(norms[0] > 0, norms[1] > 0)
    return ops.where(are_positive, ratio, ops.ones_like(ratio))


@keras.saving.register_keras_serializable("keras_tpu_estimator")
class LAMB(AdamWeightDecay):
    """Adam whose update of each variable has the length of the variable.

    [Large Batch Optimization for Deep Learning](
    https://arxiv.org/abs/1904.00962), algorithm 2. `keras.optimizers.Lamb` is
    equal without weight decay and exclusions; it subtracts weight decay
    beforehand, so that the decay does not change the length.

    Args:
        learning_rate: As in every Keras optimizer.
        bias_correction: Whether means are corrected for their start at zero, as
            in the paper, but not in the `LAMBOptimizer` of ALBERT. Defaults to
            `True`.
        exclude_from_layer_adaptation: Regular expressions. Variables whose path
            contains a match have Adam's update. Defaults to those of
            `exclude_from_weight_decay`.
        **kwargs: Arguments of `AdamWeightDecay`: `weight_decay_rate`, `beta_1`,
            `beta_2`, `epsilon`, `exclude_from_weight_decay`, and those of every
            Keras optimizer.

    Raises:
        TypeError: Patterns are not a list of str.
        ValueError: An element is not a regular expression, or `weight_decay` is
            given.

    Example:

    >>> import keras
    >>> import keras_tpu_estimator as kte
    >>> kernel = keras.Variable([3.0, 4.0], name="kernel")
    >>> optimizer = kte.optimizers.LAMB(0.1, epsilon=0.0)
    >>> optimizer.apply([keras.ops.array([8.0, 0.5])], [kernel])
    >>> print(kernel.numpy().round(3))  # 0.1 of a length of 5, at 45 degrees
    [2.646 3.646]
    """

    def __init__(
        self,
        learning_rate: Any,
        bias_correction: bool = True,
        exclude_from_layer_adaptation: Iterable[str] | None = None,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, **kwargs)
        self.bias_correction = bias_correction
        self._not_adapted = (
            None
            if exclude_from_layer_adaptation is None
            else adam_weight_decay.checked(
                "exclude_from_layer_adaptation", exclude_from_layer_adaptation
            )
        )

    @property
    def not_adapted(self) -> list[str]:
        """The patterns in the paths of variables with Adam's update."""
        patterns = self._not_adapted
        return self.not_decayed if patterns is None else patterns

    def direction(self, gradient: Any, variable: keras.Variable) -> Any:
        """Returns the direction, which is multiplied by the learning rate."""
        direction = super().direction(gradient, variable)
        if adam_weight_decay.match(self.not_adapted, variable):
            return direction
        norms = norm(variable), norm(direction)
        return where_positive(norms, norms[0] / norms[1]) * direction

    def moments(self, gradient: Any, variable: keras.Variable) -> tuple[Any, Any]:
        """Returns the corrected means of gradients and of their squares."""
        m, v = super().moments(gradient, variable)
        if not self.bias_correction:
            return m, v
        steps = ops.cast(self.iterations + 1, variable.dtype)
        return m / (1 - self.beta_1**steps), v / (1 - self.beta_2**steps)

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration of the optimizer, without its slots."""
        return {
            **super().get_config(),
            "bias_correction": self.bias_correction,
            "exclude_from_layer_adaptation": self._not_adapted,
        }
