"""Values that lie outside of the range a metric is defined for."""

import jax
import jax.numpy as jnp


def nan_unless(is_valid: jax.Array, problem: str) -> jax.Array:
    """Refuses invalid values, as well as the situation allows.

    Code that is being compiled cannot raise: there the metric becomes NaN.

    Args:
        is_valid: Boolean array of any shape.
        problem: The error message.

    Returns:
        A scalar to add to the sums of the batch: 0 if all are valid, or NaN.

    Raises:
        ValueError: The values are known, and one is invalid.
    """
    all_valid = jnp.all(is_valid)
    if not isinstance(all_valid, jax.core.Tracer) and not all_valid:
        raise ValueError(problem)
    return jnp.where(all_valid, 0.0, jnp.nan)


def check_fraction(name: str, value: float) -> None:
    """Checks that an argument lies between 0 and 1."""
    if not 0 <= value <= 1:
        raise ValueError(
            f"`{name}` must be in the range [0, 1]. Received: {value}"
        )
