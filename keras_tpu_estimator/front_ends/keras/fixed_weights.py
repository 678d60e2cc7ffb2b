"""A warning about weights that are not variables and so are not trained."""

import math
import warnings

from keras_tpu_estimator.base.tracing.analyses import FixedWeight
from keras_tpu_estimator.base.tracing.capture import Captured


def warn_of_fixed_weights(forward: Captured) -> None:
    """Warns if `model_fn` has weights that are constants of its trace."""
    weights = forward.fixed_weights
    if not weights:
        return
    warnings.warn(
        "Weights in model_fn must be variables. Received some that are not, "
        f"and so are neither trained nor saved: {_shown(weights)}, "
        f"{_why(weights)}. Make variables of a flax, equinox or plain JAX "
        "model with kte.jax_params(name, init), with trainable=False if they "
        "must not change; or mark an array as a constant with "
        "jax.lax.stop_gradient(array).",
        UserWarning,
        stacklevel=2,
    )


def _shown(weights: list[FixedWeight]) -> str:
    largest = max(weights, key=lambda each: each.size)
    text = f"{largest.dtype} of shape {largest.shape}"
    if len(weights) > 1:
        count = sum(math.prod(each.shape) for each in weights)
        text += f" and {len(weights) - 1} more, {count:,} numbers in total"
    return text


def _why(weights: list[FixedWeight]) -> str:
    if any(each.is_random for each in weights):
        return "drawn from the same key in each step"
    return "closed over as constants"
