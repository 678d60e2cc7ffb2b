"""Steps as XLA computes them fast on a CPU, wherever an operation stands."""

from collections.abc import Callable
from typing import Any

from jax import lax

from keras_tpu_estimator.ground.cpu.convolutions import faster_convolution
from keras_tpu_estimator.ground.cpu.pooling import faster_pooling, faster_selection
from keras_tpu_estimator.ground.cpu.products import faster_product
from keras_tpu_estimator.ground.cpu.rewriting import rewritten

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
    """The same function, to be compiled for a CPU.

    Its results are the same, apart from the order of sums. Gradients are taken
    inside of it: it is made of what differentiation leaves.

    Args:
        function: A function of nests of arrays, to be called under `jax.jit`;
            keyword arguments are static.

    Example:

    >>> import jax, jax.numpy as jnp
    >>> from keras_tpu_estimator.ground.cpu.tuning import tuned
    >>> jax.jit(tuned(lambda x: {"y": x + 1}))(jnp.ones(2))
    {'y': Array([2., 2.], dtype=float32)}
    """
    return rewritten(function, _RULES)
