"""All functions of Keras that this package replaces, and its replacements.

The table below has the target and the reason of each. All are needed with Keras 3.15,
the oldest supported version, and with all later ones so far. `tests/tracing` fails when
Keras changes a target.
"""

import contextlib
import contextvars
import dataclasses
import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
from keras.src.backend.common import masking
from keras.src.backend.jax import image, nn
from keras.src.backend.jax import numpy as keras_numpy
from keras.src.backend.jax import random as keras_random
from keras.src.optimizers import base_optimizer
from keras.src.saving import object_registration, serialization_lib
from keras.src.utils import jax_layer, jax_utils

from keras_tpu_estimator.base.common.machine import Machine
from keras_tpu_estimator.base.tracing import keras_internals


@dataclasses.dataclass(frozen=True)
class Patch:
    """A function of Keras, in modules or classes, that is replaced in this process.

    The reason is the behavior of Keras's function that needs a replacement.
    """

    name: str
    owners: tuple[Any, ...]
    reason: str

    def install(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replaces the function by `wrap(function)`, unless it has been replaced."""
        own = getattr(self.owners[0], self.name)
        if not hasattr(own, "replaced"):
            replacement: Any = functools.wraps(own)(wrap(own))
            replacement.replaced = own
            for owner in self.owners:
                setattr(owner, self.name, replacement)


_VARIABLE: Any = keras.Variable
# A function of the package hides the module of the same name.
_RNN: Any = sys.modules["keras.src.backend.jax.rnn"]

CREATION = Patch(
    "__init__",
    (_VARIABLE,),
    "Keras rejects variables made from arrays in a trace, and does not report new "
    "variables.",
)
ASSIGNMENT = Patch("assign", (_VARIABLE,), "Keras truncates 64-bit integers.")
RATE = Patch(
    "__init__",
    (base_optimizer.BaseOptimizer,),
    "Keras accepts functions as learning rates, but no tensors of a trace.",
)
USES_CPU = Patch(
    "_uses_cpu",
    (keras_numpy,),
    "Keras builds operations for JAX's devices, not for those of the traced program.",
)
USES_GPU = Patch(
    "_is_gpu_available",
    (_RNN,),
    "Without a GPU, cuDNN cannot report how much memory it needs. In a plan, JAX "
    "reports the backend of the topology.",
)
ATTENTION = Patch(
    "dot_product_attention",
    (nn,),
    "On a TPU, the kernel of Keras's flash attention does not scale, and treats "
    "attention without a mask as causal, and XLA cannot shard it.",
)
MASKS = Patch(
    "call",
    (keras.layers.MultiHeadAttention,),
    "Keras deletes the masks of the inputs, so that a later layer would not see a mask "
    "on these tensors.",
)
MOMENTS = Patch(
    "moments",
    (nn,),
    "Keras casts bfloat16 activations to float32, and computes their variance in a "
    "second pass. E[x^2] - E[x]^2 needs one pass, which XLA fuses with the operation "
    "that makes the activations. It loses less in float32 than the activations have "
    "already lost in bfloat16: their squares are exact, and the mean has a precision "
    "of 2^-24, each activation 2^-9.",
)
NORMALIZATIONS = tuple(
    Patch("call", (layer,), "`moments` does not receive the dtype of the inputs.")
    for layer in (
        keras.layers.BatchNormalization,
        keras.layers.GroupNormalization,
        keras.layers.LayerNormalization,
    )
)
SEEDS = tuple(
    Patch(name, (module,), "JAX uses a Keras seed as a key of its default generator.")
    for name, module in (("jax_draw_seed", keras_random), ("draw_seed", image))
)
_BY_NAME = (
    "A Keras config contains the name or the bytecode of a function, which lose its "
    "globals and its closure. A copy in this process can use the function itself."
)
REGISTERED_NAME = Patch("get_registered_name", (object_registration,), _BY_NAME)
SERIALIZATION = Patch(
    "serialize_keras_object", (serialization_lib, keras.saving, keras.utils), _BY_NAME
)
LAMBDA = Patch("_serialize_function_to_config", (keras.layers.Lambda,), _BY_NAME)
JAX_WEIGHTS = Patch(
    "_create_variables",
    (keras.layers.JaxLayer,),
    "Keras names each weight `variable` with a number that depends on earlier layers.",
)
JAX_SEED = Patch(
    "_get_init_seed",
    (keras.layers.JaxLayer,),
    "Keras's global generator would advance in every step.",
)


# Creation and assignment of variables.


def around_creation(
    wrap: Callable[[Callable[..., None], keras.Variable, Any, dict[str, Any]], None],
) -> None:
    """Calls `wrap` with the constructor and its arguments to make any variable."""

    def wrapped(construct: Callable[..., None]) -> Callable[..., None]:
        def __init__(  # noqa: N807
            self: keras.Variable, initializer: Any, *args: Any, **kwargs: Any
        ) -> None:
            # `shape`, `dtype` and `trainable` may be given by position.
            kwargs.update(zip(("shape", "dtype", "trainable"), args, strict=False))
            wrap(construct, self, initializer, kwargs)

        return __init__

    CREATION.install(wrapped)


def around_assignment(fitting: Callable[[keras.Variable, Any], Any]) -> None:
    """Assigns `fitting(variable, value)` instead of each value from now on."""

    def wrapped(assign: Callable[..., Any]) -> Callable[..., Any]:
        def fitting_assign(self: keras.Variable, value: Any) -> Any:
            return assign(self, fitting(self, value))

        return fitting_assign

    ASSIGNMENT.install(wrapped)


def accept_tensors_as_rates(is_tensor: Callable[[object], bool]) -> None:
    """Makes optimizers accept tensors as learning rates from now on."""

    def wrapped(construct: Callable[..., None]) -> Callable[..., None]:
        def __init__(  # noqa: N807
            self: Any, learning_rate: Any, *args: Any, **kwargs: Any
        ) -> None:
            rate = (lambda: learning_rate) if is_tensor(learning_rate) else None
            construct(self, rate or learning_rate, *args, **kwargs)

        return __init__

    RATE.install(wrapped)


# Operations for the devices of the traced program.

_platform: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "platform", default=None
)


@contextlib.contextmanager
def on_platform(platform: str) -> Iterator[None]:
    """Makes Keras build operations for a kind of device, such as "cpu", in a block."""
    USES_CPU.install(lambda own: functools.partial(_is_on_cpu, own))
    USES_GPU.install(lambda own: lambda: _is_on_gpu())
    ATTENTION.install(lambda own: functools.partial(_attend, own))
    token = _platform.set(platform)
    try:
        yield
    finally:
        _platform.reset(token)


def platform() -> str | None:
    """Returns the kind of device of `on_platform`, or `None` outside."""
    return _platform.get()


def _is_on_cpu(uses_cpu: Callable[[Any], bool], x: Any) -> bool:
    chosen = platform()
    return uses_cpu(x) if chosen is None else chosen == "cpu"


def _is_on_gpu() -> bool:
    return platform() in (None, "gpu") and Machine.here().platform == "gpu"


def _attend(attention: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns attention, on a TPU without the flash attention of Keras."""
    if platform() != "tpu":
        return attention(*args, **kwargs)
    bound = inspect.signature(attention).bind(*args, **kwargs).arguments
    for name in ("flash_attention", "attn_logits_soft_cap"):
        if bound.get(name):
            raise ValueError(
                "Attention on a TPU must not use Keras's flash attention, which "
                f"computes wrong numbers there. Received: {name}={bound[name]}. "
                "Omit it."
            )
    return attention(**{**bound, "flash_attention": False})


def keep_masks() -> None:
    """Makes attention keep the masks of its inputs from now on."""

    def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
        def keeping(
            self: Any, query: Any, value: Any, key: Any = None, *args: Any, **kw: Any
        ) -> Any:
            inputs = [each for each in (query, value, key) if each is not None]
            masks = [masking.get_keras_mask(each) for each in inputs]
            try:
                return call(self, query, value, key, *args, **kw)
            finally:
                for each, mask in zip(inputs, masks, strict=True):
                    masking.set_keras_mask(each, mask)

        return keeping

    MASKS.install(wrapped)


# Moments in one pass.

# The dtype of the inputs of the layer that is being called.
_given: contextvars.ContextVar[str] = contextvars.ContextVar("given", default="")


def in_one_pass() -> None:
    """Makes Keras's layers compute moments in one pass from now on, except on a CPU."""
    MOMENTS.install(lambda own: functools.partial(_moments, own))
    for patch in NORMALIZATIONS:
        patch.install(_noting)


def _noting(call: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the `call` of a layer record the dtype of its inputs."""

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
    is_of_cpu = platform() in (None, "cpu")
    if is_of_cpu or _given.get() != "bfloat16" or x.dtype != "float32":
        return moments(x, axes, keepdims, synchronized=synchronized)
    axes = tuple(axes)
    mean = jnp.mean(x, axes, keepdims=keepdims)
    square = jnp.mean(jnp.square(x), axes, keepdims=keepdims)
    return mean, jnp.maximum(square - jnp.square(mean), 0.0)


# Random generators.

# JAX's names. Devices generate the numbers of these fast, but each kind of device
# generates different numbers.
BY_DEVICE = ("rbg", "unsafe_rbg")
GENERATORS = ("threefry2x32", *BY_DEVICE)
_WORDS = (2,)

_chosen: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "random_bits", default=None
)


@contextlib.contextmanager
def made_by(generator: str | None) -> Iterator[None]:
    """Makes Keras use one of `GENERATORS`, or JAX's default, in a `with` block."""
    token = _chosen.set(generator)
    try:
        yield
    finally:
        _chosen.reset(token)


def are_by_device(chosen: str | None) -> bool:
    """Returns whether devices make the bits of a generator, or of JAX's default."""
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
for _patch in SEEDS:
    _patch.install(lambda draw: lambda seed: _key_of(draw(seed)))


# Python functions in configs.


class _Kept(threading.local):
    """The functions that this thread keeps by name, or `None`."""

    def __init__(self) -> None:
        self.by_name: dict[str, Any] | None = None


_FUNCTIONS = _Kept()


@contextlib.contextmanager
def kept_functions() -> Iterator[dict[str, Any]]:
    """Makes configs contain names of functions in a block; yields them by name."""
    REGISTERED_NAME.install(lambda own: lambda value: _name_of(value) or own(value))
    SERIALIZATION.install(lambda own: functools.partial(_serialized, own))
    LAMBDA.install(_serialized_in_lambda)
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


def _serialized(serialize: Callable[[Any], Any], value: Any) -> Any:
    name = _name_of(value)
    if name is None:
        return serialize(value)
    return {
        "module": None,
        "class_name": "function",
        "config": name,
        "registered_name": name,
    }


def _serialized_in_lambda(own: Callable[..., Any]) -> Callable[..., Any]:
    def serialized(layer: Any, function: Any) -> Any:
        if _name_of(function) is None:
            return own(layer, function)
        return serialization_lib.serialize_keras_object(function)

    return serialized


# Layers of JAX functions.


def around_jax_layers(
    is_traced: Callable[[], bool], name_leaves: Callable[[Any], list[str]]
) -> None:
    """Makes layers of JAX functions work in a trace, with named weights.

    Args:
        is_traced: Whether a trace is running in which variables can be made.
        name_leaves: Returns the names of a pytree's leaves, in JAX's order.
    """

    def is_refused(x: Any = None) -> bool:
        return not is_traced() and jax_utils.is_in_jax_tracing_scope(x)

    def named(create: Callable[..., Any]) -> Callable[..., Any]:
        def create_named(self: Any, values: Any, trainable: bool) -> Any:
            prefix = "" if trainable else "state."
            names = iter(name_leaves(values))
            add = self.add_weight

            def add_named(*args: Any, **kwargs: Any) -> Any:
                return add(*args, name=prefix + next(names), **kwargs)

            vars(self)["add_weight"] = add_named
            try:
                return create(self, values, trainable)
            finally:
                del vars(self)["add_weight"]

        return create_named

    def seeded(seed: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def init_seed(self: Any) -> Any:
            if is_traced():
                return jnp.uint32([keras_internals.default_seed(), 0])
            return seed(self)

        return init_seed

    # Keras rejects these layers in a trace.
    jax_layer.jax_utils = types.SimpleNamespace(is_in_jax_tracing_scope=is_refused)
    JAX_WEIGHTS.install(named)
    JAX_SEED.install(seeded)
