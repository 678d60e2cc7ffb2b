"""Changed behavior of Keras: moments in one pass, random generators, named functions.

Keras casts bfloat16 activations to float32, and computes their variance in a second
pass. E[x^2] - E[x]^2 needs one pass, which XLA fuses with the operation that makes the
activations. It loses less in float32 than the activations have already lost in
bfloat16: their squares are exact, and the mean has a precision of 2^-24, each
activation 2^-9.

A Keras config contains the name or the bytecode of a function, which lose its globals
and its closure. A copy in this process can use the function itself.
"""

import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras

from keras_tpu_estimator.base.tracing import keras_internals

_LAYERS = (
    keras.layers.BatchNormalization,
    keras.layers.GroupNormalization,
    keras.layers.LayerNormalization,
)
# The dtype of the inputs of the layer that is being called.
_given: contextvars.ContextVar[str] = contextvars.ContextVar("given", default="")


# JAX's names. Devices generate the numbers of these fast, but each kind of device
# generates different numbers.
BY_DEVICE = ("rbg", "unsafe_rbg")
GENERATORS = ("threefry2x32", *BY_DEVICE)
_WORDS = (2,)

_chosen: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "random_bits", default=None
)


def in_one_pass() -> None:
    """Makes Keras's layers compute moments in one pass from now on, except on a CPU."""
    keras_internals.around_moments(_moments)
    for layer in _LAYERS:
        if not hasattr(layer.call, "__wrapped__"):
            layer.call = _noting(layer.call)


def _noting(call: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the `call` of a layer record the dtype of its inputs."""

    @functools.wraps(call)
    def noting(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        token = _given.set(keras.backend.standardize_dtype(inputs.dtype))
        try:
            return call(self, inputs, *args, **kwargs)
        finally:
            _given.reset(token)

    return noting


def _moments(
    moments: Callable[..., tuple[jax.Array, jax.Array]],
    x: jax.Array,
    axes: Sequence[int],
    keepdims: bool = False,
    synchronized: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Returns the mean and variance, as Keras's own function does."""
    is_of_cpu = keras_internals.platform() in (None, "cpu")
    if is_of_cpu or _given.get() != "bfloat16" or x.dtype != "float32":
        return moments(x, axes, keepdims, synchronized=synchronized)
    axes = tuple(axes)
    mean = jnp.mean(x, axes, keepdims=keepdims)
    square = jnp.mean(jnp.square(x), axes, keepdims=keepdims)
    return mean, jnp.maximum(square - jnp.square(mean), 0.0)


@contextlib.contextmanager
def made_by(generator: str | None) -> Iterator[None]:
    """Makes Keras draw random numbers with a generator in a `with` block.

    Args:
        generator: One of `GENERATORS`, or `None` for JAX's default.
    """
    token = _chosen.set(generator)
    try:
        yield
    finally:
        _chosen.reset(token)


def are_by_device(chosen: str | None) -> bool:
    """Returns whether devices generate the random bits.

    Args:
        chosen: One of `GENERATORS`, or `None` for JAX's default.
    """
    return (chosen or _default_generator()) in BY_DEVICE


def _default_generator() -> str:
    default: str = jax.config.values["jax_default_prng_impl"]
    return default


def _key_of(seed: jax.Array) -> jax.Array:
    """Returns the key that JAX receives for a Keras seed, which has two words.

    JAX would interpret the words as a key of its default generator, which may have
    four.
    """
    chosen = _chosen.get() or _default_generator()
    is_plain = seed.dtype == "uint32" and seed.shape == _WORDS
    if not is_plain or chosen == _default_generator() == "threefry2x32":
        return seed
    words = jnp.tile(seed, 2) if chosen in BY_DEVICE else seed
    return jax.random.wrap_key_data(words, impl=chosen)


# Layers may be made before and outside any `model_fn`.
keras_internals.around_seeds(_key_of)


class _Kept(threading.local):
    """The functions that this thread keeps by name, or `None`."""

    def __init__(self) -> None:
        self.by_name: dict[str, Any] | None = None


_FUNCTIONS = _Kept()


@contextlib.contextmanager
def kept_functions() -> Iterator[dict[str, Any]]:
    """Makes configs contain names of Python functions in a `with` block.

    Yields the functions by their names in configs.

    Example:

    >>> import keras
    >>> def double(x):
    ...     return 2 * x
    >>> layer = keras.layers.Dense(1, activation=double)
    >>> with kept_functions() as functions:
    ...     name = layer.get_config()["activation"]["config"]
    >>> functions[name] is double
    True
    """
    keras_internals.name_functions(_name_of)
    before, _FUNCTIONS.by_name = _FUNCTIONS.by_name, {}
    try:
        yield _FUNCTIONS.by_name
    finally:
        _FUNCTIONS.by_name = before


def _name_of(value: Any) -> str | None:
    """Returns the name of a function in a config, or `None` to use Keras's."""
    if _FUNCTIONS.by_name is None or not _is_plain_function(value):
        return None
    name = f"kte>function-{id(value)}"
    # The `id` is unique while the function is kept.
    _FUNCTIONS.by_name[name] = value
    return name


def _is_plain_function(value: Any) -> bool:
    """Returns whether a value is callable and has no config that makes it again."""
    if not callable(value) or isinstance(value, type) or hasattr(value, "get_config"):
        return False
    return not keras_internals.is_of_keras(value)
