"""Random numbers of Keras: default seeds, and the generator of bits."""

import contextlib
import contextvars
import random
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras

from keras_tpu_estimator.base.upstream.private_names import PrivateName
from keras_tpu_estimator.base.upstream.replacements import (
    ModuleReplacement,
    Replacement,
)

# JAX's names. Devices generate the numbers of these fast, but each kind of device
# generates different numbers.
BY_DEVICE = ("rbg", "unsafe_rbg")
GENERATORS = ("threefry2x32", *BY_DEVICE)
_SEED_WORDS = (2,)

_LIKE_KEY = "draws seeds; JAX uses a Keras seed as a key of its default generator"
DRAWN_SEEDS = Replacement(
    PrivateName(_LIKE_KEY, ("keras.src.backend.jax.random.jax_draw_seed",)),
    lambda: keras.random.uniform((1,), seed=1),
)
DRAWN_SEEDS_OF_IMAGES = Replacement(
    PrivateName(
        _LIKE_KEY,
        (
            "keras.src.backend.jax.ops.image.draw_seed",
            "keras.src.backend.jax.image.draw_seed",
        ),
    ),
)
DEFAULT_SEEDS = ModuleReplacement(
    PrivateName(
        "draws default seeds; Keras draws them from Python's global generator",
        ("keras.src.random.seed_generator.python_random",),
    ),
    keras.initializers.RandomNormal,
)
DROPOUT = Replacement(
    PrivateName(
        "drops random elements; two programs draw different ones",
        ("keras.src.backend.jax.random.dropout",),
    ),
    lambda: keras.random.dropout(jnp.ones(2), 0.5, seed=1),
)

_generator: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "random_bits", default=None
)


def default_seed() -> int:
    """Returns a seed as Keras chooses it."""
    seed: int = keras.initializers.RandomNormal().seed
    return seed


@contextlib.contextmanager
def default_seeds(generator: random.Random) -> Iterator[None]:
    """Makes Keras draw this context's default seeds from a generator in a block."""
    with DEFAULT_SEEDS.block(lambda _: generator):
        yield


@contextlib.contextmanager
def without_dropout(note: Callable[[float], object]) -> Iterator[None]:
    """Makes Keras drop nothing in a `with` block; `note` receives each rate."""

    def dropout(
        function: Any, inputs: Any, rate: float, *arguments: Any, **named: Any
    ) -> Any:
        del function, arguments, named
        note(rate)
        return inputs

    with DROPOUT.block(dropout):
        yield


@contextlib.contextmanager
def made_by(generator: str | None) -> Iterator[None]:
    """Makes Keras use one of `GENERATORS`, or JAX's default, in a `with` block."""
    token = _generator.set(generator)
    try:
        with (
            DRAWN_SEEDS.block(lambda draw, seed: _key_of(draw(seed))),
            DRAWN_SEEDS_OF_IMAGES.block(lambda draw, seed: _key_of(draw(seed))),
        ):
            yield
    finally:
        _generator.reset(token)


def are_by_device(generator: str | None) -> bool:
    """Returns whether devices make the bits of a generator, or of JAX's default."""
    return (generator or _default_generator()) in BY_DEVICE


def _default_generator() -> str:
    default: str = jax.config.values["jax_default_prng_impl"]
    return default


def _key_of(seed: jax.Array) -> jax.Array:
    """Returns the key that JAX receives for a Keras seed, which has two words.

    JAX would interpret the words as a key of its default generator, which may have
    four.
    """
    generator = _generator.get() or _default_generator()
    is_plain = seed.dtype == "uint32" and seed.shape == _SEED_WORDS
    if not is_plain or generator == _default_generator() == "threefry2x32":
        return seed
    words = jnp.tile(seed, 2) if generator in BY_DEVICE else seed
    return jax.random.wrap_key_data(words, impl=generator)
