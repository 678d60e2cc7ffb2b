"""The learning rates of embedding tables in a step."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator.front_ends.tables.config_spec import (
    EmbeddingConfigSpec,
)
from keras_tpu_estimator.ground.base.shown import shown


def multiplier_of(spec: EmbeddingConfigSpec, step: jax.Array) -> jax.Array:
    """Returns the factor of the gradients of all tables, a scalar.

    Raises:
        ValueError: The function of the step does not return a number.
    """
    of_step = spec.experimental_gradient_multiplier_fn
    if of_step is None:
        return jnp.float32(1)
    return _number("experimental_gradient_multiplier_fn", of_step, step)


def rate_of(
    spec: EmbeddingConfigSpec, table: str, step: jax.Array
) -> jax.Array:
    """Returns the learning rate of a table, a scalar.

    Args:
        table: The table's name.

    Raises:
        ValueError: The function of the step does not return a number.
    """
    config = spec.tables[table]
    if config.learning_rate_fn is not None:
        name = f"learning_rate_fn of the table {table!r}"
        return _number(name, config.learning_rate_fn, step)
    rate = config.learning_rate
    if rate is None:
        rate = spec.optimizer_of(table).learning_rate
    return jnp.float32(rate)


def _number(
    name: str, of_step: Callable[[Any], Any], step: jax.Array
) -> jax.Array:
    returned = of_step(step)
    # TensorFlow scripts return a list, or a tensor of one element.
    is_number = not isinstance(returned, str) and returned is not None
    if not is_number or np.size(returned) != 1:
        raise ValueError(
            f"{name} must return a number, or a tensor of one element. "
            f"Received: {shown(returned)}. Return one number for the step."
        )
    return jnp.asarray(returned, "float32").reshape(())
