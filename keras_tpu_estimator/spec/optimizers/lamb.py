"""Adam for large batches, with a rate for each layer."""

from collections.abc import Iterable
from typing import Any

import keras
from keras import ops

from keras_tpu_estimator.spec.optimizers import patterns
from keras_tpu_estimator.spec.optimizers.adam_weight_decay import (
    AdamWeightDecay,
)
from keras_tpu_estimator.spec.optimizers.lars import norm
from keras_tpu_estimator.spec.optimizers.lars import where_positive


@keras.saving.register_keras_serializable("keras_tpu_estimator")
class LAMB(AdamWeightDecay):
    """Adam whose update of each variable is as long as the variable.

    [Large Batch Optimization for Deep Learning](
    https://arxiv.org/abs/1904.00962), algorithm 2. `keras.optimizers.Lamb` is
    the same where nothing decays and nothing is excluded; its weight decay is
    taken off beforehand, and does not count in the length.

    Args:
        learning_rate: As of every optimizer.
        bias_correction: Whether means are corrected for their start at zero,
            as in the paper; the `LAMBOptimizer` of ALBERT does not. Defaults
            to `True`.
        exclude_from_layer_adaptation: Regular expressions. Variables have
            Adam's update if one is found in their path. Defaults to those of
            `exclude_from_weight_decay`.
        **kwargs: What `AdamWeightDecay` takes: `weight_decay_rate`, `beta_1`,
            `beta_2`, `epsilon`, `exclude_from_weight_decay`, and what every
            optimizer of Keras takes.

    Raises:
        TypeError: Patterns are no list of str.
        ValueError: One of them is no regular expression, or `weight_decay` is
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
            else patterns.checked(
                "exclude_from_layer_adaptation", exclude_from_layer_adaptation
            )
        )

    @property
    def not_adapted(self) -> list[str]:
        """What the paths of variables with Adam's update have in them."""
        given = self._not_adapted
        return self.not_decayed if given is None else given

    def direction(self, gradient: Any, variable: keras.Variable) -> Any:
        """What the learning rate is multiplied with."""
        direction = super().direction(gradient, variable)
        if patterns.match(self.not_adapted, variable):
            return direction
        norms = norm(variable), norm(direction)
        return where_positive(norms, norms[0] / norms[1]) * direction

    def moments(
        self, gradient: Any, variable: keras.Variable
    ) -> tuple[Any, Any]:
        """The means of gradients and of their squares, corrected."""
        m, v = super().moments(gradient, variable)
        if not self.bias_correction:
            return m, v
        steps = ops.cast(self.iterations + 1, variable.dtype)
        return m / (1 - self.beta_1**steps), v / (1 - self.beta_2**steps)

    def get_config(self) -> dict[str, Any]:
        """What makes the same optimizer again, without its slots."""
        return {
            **super().get_config(),
            "bias_correction": self.bias_correction,
            "exclude_from_layer_adaptation": self._not_adapted,
        }
