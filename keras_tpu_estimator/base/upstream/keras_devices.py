"""Operations that Keras builds for the devices of the process.

A traced program may run on other devices, such as those of a plan.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_estimator.base.common.machine import Machine
from keras_tpu_estimator.base.upstream import keras_layers
from keras_tpu_estimator.base.upstream.private_names import PrivateName
from keras_tpu_estimator.base.upstream.replacements import Replacement

_Moments: TypeAlias = tuple[jax.Array, jax.Array]


_ROW = np.zeros((1, 1, 1, 1), "float32")


USES_CPU = Replacement(
    PrivateName(
        "chooses operations; Keras asks for JAX's devices, not for those of the traced "
        "program",
        (
            "keras.src.backend.jax.ops.numpy._uses_cpu",
            "keras.src.backend.jax.numpy._uses_cpu",
        ),
    ),
    lambda: jax.eval_shape(keras.ops.argmax, _ROW),
)
USES_GPU = Replacement(
    PrivateName(
        "chooses cuDNN, which cannot report how much memory it needs without a GPU; in "
        "a plan, JAX reports the backend of the topology",
        ("keras.src.backend.jax.rnn._is_gpu_available",),
    ),
)
ATTENTION = Replacement(
    PrivateName(
        "computes attention; on a TPU, the kernel of Keras's flash attention does not "
        "scale, and treats attention without a mask as causal, and XLA cannot shard it",
        (
            "keras.src.backend.jax.ops.nn.dot_product_attention",
            "keras.src.backend.jax.nn.dot_product_attention",
        ),
    ),
    lambda: jax.eval_shape(keras.ops.dot_product_attention, _ROW, _ROW, _ROW),
)
# E[x^2] - E[x]^2 needs one pass, which XLA fuses with the operation that makes the
# activations. It loses less in float32 than the activations have already lost in
# bfloat16: their squares are exact, and the mean has a precision of 2^-24, each
# activation 2^-9.
MOMENTS = Replacement(
    PrivateName(
        "computes moments; Keras casts bfloat16 activations to float32, and computes "
        "their variance in a second pass",
        (
            "keras.src.backend.jax.ops.nn.moments",
            "keras.src.backend.jax.nn.moments",
        ),
    ),
    lambda: jax.eval_shape(lambda x: keras.ops.moments(x, axes=[0]), _ROW),
)
_NORMALIZATIONS = (
    keras.layers.BatchNormalization,
    keras.layers.GroupNormalization,
    keras.layers.LayerNormalization,
)

_platform: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "platform", default=None
)


@contextlib.contextmanager
def on_platform(platform: str) -> Iterator[None]:
    """Makes Keras build operations for a kind of device, such as "cpu", in a block."""
    token = _platform.set(platform)
    try:
        with (
            keras_layers.calls_watched(_nothing),
            USES_CPU.block(lambda uses_cpu, x: platform == "cpu"),
            USES_GPU.block(lambda is_available: _is_on_gpu(platform)),
            MOMENTS.block(_plain if platform == "cpu" else _moments),
        ):
            yield
    finally:
        _platform.reset(token)


def platform() -> str | None:
    """Returns the kind of device of `on_platform`, or `None` outside."""
    return _platform.get()


def _nothing(*_: object) -> None:
    """Watches no call; `calls_watched` records the called layers."""


def _plain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _is_on_gpu(platform: str) -> bool:
    return platform == "gpu" and Machine.from_jax().platform == "gpu"


def _moments(
    moments: Callable[..., _Moments],
    x: jax.Array,
    axes: Sequence[int],
    keepdims: bool = False,
    synchronized: bool = False,
) -> _Moments:
    """Returns the mean and variance, in one pass for bfloat16 activations."""
    layer = keras_layers.called_layer()
    is_narrow = isinstance(layer, _NORMALIZATIONS) and (
        layer.autocast and layer.compute_dtype == "bfloat16"
    )
    if not is_narrow or x.dtype != "float32":
        return moments(x, axes, keepdims, synchronized=synchronized)
    axes = tuple(axes)
    mean = jnp.mean(x, axes, keepdims=keepdims)
    square = jnp.mean(jnp.square(x), axes, keepdims=keepdims)
    return mean, jnp.maximum(square - jnp.square(mean), 0.0)
