"""Checks of the traced forward pass of a `model_fn`."""

import math
import warnings
from typing import Any

import jax

from keras_tpu_estimator.base.tracing.analyses import FixedWeight
from keras_tpu_estimator.base.tracing.capture import Captured
from keras_tpu_estimator.front_ends.keras.traced_model_fn import TracedModelFn


def warn_of_label_shapes(
    registry: dict[Any, Any], forward: Captured, *args: Any
) -> None:
    """Warns if labels and outputs are broadcast to a tensor of all pairs.

    `registry` has a program's warnings so far, as in Python's `warnings`.
    """
    is_label = [
        number == 1 for number, tree in enumerate(args) for _ in jax.tree.leaves(tree)
    ]
    for crossing in forward.crossings(is_label):
        size = max(*crossing.labels, *crossing.outputs)
        warnings.warn_explicit(
            f"Labels of shape {crossing.labels} and outputs of shape "
            f"{crossing.outputs} give a tensor of shape {(size, size)}: each "
            "label with the output of each example. Expected equal shapes. "
            "Reshape one of them, as by labels[:, None] or outputs[:, 0]; or "
            "write labels[None, :] if you need all pairs.",
            UserWarning,
            crossing.file,
            crossing.line,
            registry=registry,
        )


def check_can_be_sharded(call: TracedModelFn, forward: Captured) -> None:
    """Checks that a model with several devices per replica has no callbacks."""
    if call.example.cores.model_axes and forward.callbacks:
        raise NotImplementedError(
            "With several cores per replica model_fn must not call back into "
            "Python, because XLA cannot place that call. Received: "
            f"{forward.callbacks}. Compute it in host_call or a hook, or "
            "leave num_cores_per_replica out."
        )


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
    largest = max(weights, key=lambda weight: weight.size)
    text = f"{largest.dtype} of shape {largest.shape}"
    if len(weights) > 1:
        count = sum(math.prod(weight.shape) for weight in weights)
        text += f" and {len(weights) - 1} more, {count:,} numbers in total"
    return text


def _why(weights: list[FixedWeight]) -> str:
    if any(weight.is_random for weight in weights):
        return "drawn from the same key in each step"
    return "closed over as constants"
