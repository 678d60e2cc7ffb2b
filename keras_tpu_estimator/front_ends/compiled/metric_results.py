"""The results of a compiled model's metrics, as results of a `metric_fn`."""

from collections.abc import Mapping

import jax
import keras

from keras_tpu_estimator.base.tracing import keras_internals

# The name of the metric that training and evaluation add by themselves.
LOSS = "loss"


class Result(keras.metrics.Metric):
    """A metric with a fixed value, computed by other metrics.

    Args:
        value: The value.
        direction: The direction of improvement, "up" or "down", if known.
    """

    def __init__(self, value: jax.Array, direction: str | None = None):
        super().__init__(name="result")
        self._value = value
        if direction is not None:
            keras_internals.give_direction(self, direction)

    def result(self) -> jax.Array:
        """Returns the value."""
        return self._value


def results_of(
    model: keras.Model, names: Mapping[str, str]
) -> dict[str, keras.metrics.Metric]:
    """Returns the results of a model's metrics, except the loss.

    Args:
        names: New names of metrics, by Keras's names.
    """
    metrics = keras_internals.metrics_of(model)
    directions = keras_internals.directions_of(metrics)
    return {
        names.get(name, name): Result(value, directions.get(name))
        for name, value in model.get_metrics_result().items()
        if name != LOSS
    }
