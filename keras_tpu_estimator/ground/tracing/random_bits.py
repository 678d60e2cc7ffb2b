"""Which generator makes the bits of random numbers."""

import contextlib
import contextvars
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from keras_tpu_estimator.ground.tracing import keras_internals

# As JAX calls them. What the devices make by themselves is fast, and other
# numbers on each kind of them.
BY_DEVICE = ("rbg", "unsafe_rbg")
GENERATORS = ("threefry2x32", *BY_DEVICE)
_WORDS = (2,)

_chosen: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "random_bits", default=None
)


@contextlib.contextmanager
def made_by(generator: str | None) -> Iterator[None]:
    """Has Keras draw by a generator in a `with` block.

    Args:
        generator: One of `GENERATORS`, or `None` for JAX's default.
    """
    token = _chosen.set(generator)
    try:
        yield
    finally:
        _chosen.reset(token)


def are_by_device(chosen: str | None) -> bool:
    """Whether devices make the bits.

    Args:
        chosen: One of `GENERATORS`, or `None` for JAX's default.
    """
    return (chosen or _default()) in BY_DEVICE


def _default() -> str:
    default: str = jax.config.values["jax_default_prng_impl"]
    return default


def _key_of(seed: jax.Array) -> jax.Array:
    """What JAX is given for a seed of Keras, which has two words.

    JAX would take them for a key of its default, which may have four.
    """
    chosen = _chosen.get() or _default()
    is_plain = seed.dtype == "uint32" and seed.shape == _WORDS
    if not is_plain or chosen == _default() == "threefry2x32":
        return seed
    words = jnp.tile(seed, 2) if chosen in BY_DEVICE else seed
    return jax.random.wrap_key_data(words, impl=chosen)


# Layers may be made before, and outside of, any `model_fn`.
keras_internals.around_seeds(_key_of)
