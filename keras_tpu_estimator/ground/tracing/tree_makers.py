"""Functions that make a pytree of arrays, as `jax_params` takes them."""

import inspect
from collections.abc import Callable
from typing import Any

import jax

from keras_tpu_estimator.ground.base.shown import shown
from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.ground.tracing.array_trees import (
    flax_classes,
    leaves_of,
    with_values,
)


def maker(init: Any, new_seed: Callable[[], int]) -> Callable[[], Nest]:
    """Returns a function that makes the same pytree in each call.

    Args:
        init: A pytree; or a function that makes one, of a PRNG key or of no
            argument.
        new_seed: Returns a seed, called if `init` takes a key.

    Raises:
        ValueError: `init` is a module of flax.linen, which has no arrays.
    """
    if not _is_function(init):
        return lambda: init
    if "Module" in flax_classes(init):
        raise ValueError(
            "A pytree of arrays, or a function that makes one, is needed. "
            f"Received: {shown(init)}, a module of flax.linen, which has no "
            "arrays itself. Pass `lambda key: module.init(key, inputs)`."
        )
    if not _required(init):
        return lambda: init()
    seed = new_seed()
    return lambda: init(jax.random.key(seed))


def shapes_of(init: Any) -> Nest:
    """Returns a pytree, or the one that a function makes without its numbers.

    Args:
        init: As for `maker`.

    Returns:
        `init` itself if it is a pytree; else what it returns, with shapes and
        dtypes in place of the arrays. Nothing is computed.

    Example:

    >>> shapes = shapes_of(lambda: {"w": jax.numpy.zeros((3, 1)), "name": "l"})
    >>> shapes["w"], shapes["name"]
    (ShapeDtypeStruct(shape=(3, 1), dtype=float32), 'l')
    """
    make = maker(init, lambda: 0)
    if not _is_function(init):
        return init
    made: list[Nest] = []

    def arrays() -> list[Any]:
        made.append(make())
        return [leaf.value if leaf.is_array else None for leaf in leaves_of(made[0])]

    shapes = jax.eval_shape(arrays)
    leaves = leaves_of(made[0])
    return with_values(
        made[0],
        [
            leaf.value if shape is None else shape
            for leaf, shape in zip(leaves, shapes, strict=True)
        ],
    )


def _is_function(init: Any) -> bool:
    """Whether it is called. Modules can be called, but they are pytrees."""
    return callable(init) and jax.tree_util.all_leaves([init])


def _required(function: Callable[..., Any]) -> list[str]:
    """Returns the arguments that must be passed by position."""
    by_position = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    return [
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind in by_position
    ]
