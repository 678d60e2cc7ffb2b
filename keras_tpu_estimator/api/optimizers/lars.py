"""The LARS optimizer: momentum for large batches, with layer-wise rates."""

from collections.abc import Iterable
from typing import Any

import keras
from keras import ops

from keras_tpu_estimator.api.optimizers import adam_weight_decay


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
    """Returns a ratio of norms, or 1 where one of them is zero.

    A ratio of zero would keep weights at zero that start there.

    Args:
        ratio: Scalar, any value where one of the norms is zero.

    Example:

    >>> float(where_positive((2.0, 4.0), 0.5))
    0.5
    >>> float(where_positive((0.0, 4.0), 0.0))
    1.0
    """
    are_positive = ops.logical_and(norms[0] > 0, norms[1] > 0)
    return ops.where(are_positive, ratio, ops.ones_like(ratio))
