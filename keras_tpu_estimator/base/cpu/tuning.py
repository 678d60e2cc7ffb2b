"""Steps that XLA computes fast on a CPU."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex

from keras_tpu_estimator.base.cpu.convolution import faster_convolution
from keras_tpu_estimator.base.cpu.pooling import faster_pooling, faster_selection
from keras_tpu_estimator.base.cpu.rewriting import like_of, rewritten

# Measured with up to 4,096 examples and 768 x 1,024 weights: the rewritten product
# takes 0.4 to 1 times as long within these limits, and up to 2 times outside.
_EXAMPLES = range(8, 1025)
_MOST_INPUTS = 2**18


def faster_product(equation: jex.JaxprEqn) -> Callable[..., jax.Array] | None:
    """A rule for `rewritten`: gradients of the weights of dense layers.

    Such a gradient sums over the first dimension of both operands, the examples. XLA
    passes it to Eigen, which copies both. A plain matrix product uses a faster library,
    and transposing one operand costs less.
    """
    gradient, inputs = map(like_of, equation.invars)
    (summed, also), batch = equation.params["dimension_numbers"]
    count = len(summed)
    if not (
        gradient.dtype == inputs.dtype == "float32"
        and summed == also == tuple(range(count))
        and batch == ((), ())
        and len(gradient.shape) == len(inputs.shape) == count + 1
        and math.prod(inputs.shape[:-1]) in _EXAMPLES
        and math.prod(inputs.shape) <= _MOST_INPUTS
    ):
        return None

    def product(gradient: jax.Array, inputs: jax.Array) -> jax.Array:
        # Without the barrier, XLA would sum over the first dimension again.
        turned = lax.optimization_barrier(inputs.reshape(-1, inputs.shape[-1]).T)
        weights = lax.dot(
            turned,
            gradient.reshape(-1, gradient.shape[-1]),
            precision=equation.params["precision"],
            preferred_element_type=equation.params["preferred_element_type"],
        )
        # The result has the layout of the gradient, which is then transposed.
        return weights.T

    return product


_FLOATS = ("float32", "float64")
_RULES = {
    "conv_general_dilated": faster_convolution,
    "dot_general": faster_product,
    "reduce_window_max": faster_pooling(lax.max, -float("inf"), _FLOATS),
    "reduce_window_min": faster_pooling(lax.min, float("inf"), _FLOATS),
    "reduce_window_sum": faster_pooling(lax.add, 0.0, _FLOATS),
    "select_and_scatter_add": faster_selection,
}


def tuned(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the same function, rewritten for a CPU, for use under `jax.jit`.

    Results are equal except for the order of sums. Keyword arguments are static.
    """
    faster = rewritten(function, _RULES)

    @functools.wraps(function)
    def run(*args: Any, **static: Any) -> Any:
        return faster(*jax.tree.map(_with_barrier, args), **static)

    return run


def _with_barrier(value: Any) -> Any:
    """Returns an argument, behind an optimization barrier if it may count steps.

    XLA would combine counters of steps with the counter of the loop around them. It
    would rebuild the loop for that, a third of the time of compiling a deep model.
    """
    is_counter = jnp.issubdtype(value.dtype, jnp.integer) and not value.ndim
    return lax.optimization_barrier(value) if is_counter else value
