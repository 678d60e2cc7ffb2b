"""The LAMB optimizer: Adam for large batches, with layer-wise rates."""

from collections.abc import Iterable
from typing import Any

import keras
from keras import ops

from keras_tpu_estimator.api.optimizers import adam_weight_decay
from keras_tpu_estimator.api.optimizers.adam_weight_decay import (
    AdamWeightDecay,
)
from keras_tpu_estimator.api.optimizers.lars import norm, where_positive


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
        given = self._not_adapted
        return self.not_decayed if given is None else given

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
