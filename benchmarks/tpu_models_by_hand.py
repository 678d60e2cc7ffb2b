"""Optimized networks for a TPU in plain JAX.

Moments take one pass, and the device generates random numbers.
"""

import dataclasses
import math
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

Arrays: TypeAlias = Any

CLASSES, WORDS, DROPOUT = 10, 1024, 0.1
# The filters, the number of blocks, and the strides of the first block.
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))


@dataclasses.dataclass(frozen=True)
class Mlp:
    """Dense layers.

    Attributes:
        sizes: Features, hidden units and classes.
    """

    sizes: tuple[int, ...]

    def weights(self) -> Arrays:
        """The shapes of the weights."""
        return [_dense(*pair) for pair in zip(self.sizes, self.sizes[1:], strict=False)]

    def others(self) -> Arrays:
        """No untrained values."""
        return ()

    def logits(
        self, weights: Arrays, x: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Arrays]:
        """Returns the logits, and no untrained values."""
        del key
        for kernel, bias in weights[:-1]:
            x = jax.nn.relu(x @ kernel + bias)
        kernel, bias = weights[-1]
        return x @ kernel + bias, ()


@dataclasses.dataclass(frozen=True)
class Bert:
    """Encoder layers, with a classifier on the first word.

    Attributes:
        layers: The number of layers.
        width: The size of a word's vector.
        heads: The number of attention heads.
        dtype: The dtype of the weights. Defaults to "bfloat16".
    """

    layers: int
    width: int
    heads: int
    dtype: str = "bfloat16"

    def weights(self) -> Arrays:
        """The shapes of the weights."""
        wide, norm = 4 * self.width, (self._array(self.width),) * 2
        layer = {
            **{name: self._square() for name in ("query", "key", "value")},
            "mixed": self._square(),
            "wide": _dense(self.width, wide, self.dtype),
            "narrow": _dense(wide, self.width, self.dtype),
            "norms": (norm, norm),
        }
        return {
            "words": self._array(WORDS, self.width),
            "layers": [layer] * self.layers,
            "classes": _dense(self.width, CLASSES, self.dtype),
        }

    def others(self) -> Arrays:
        """No untrained values."""
        return ()

    def logits(
        self, weights: Arrays, x: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Arrays]:
        """Returns the logits, and no untrained values."""
        keys = iter(jax.random.split(key, 3 * self.layers))
        x = weights["words"][x]
        for layer in weights["layers"]:
            y = self._attention(layer, x, next(keys))
            x = _layer_norm(x + _dropped(y, next(keys)), *layer["norms"][0])
            y = jax.nn.gelu(_of_dense(layer["wide"], x), approximate=False)
            y = _of_dense(layer["narrow"], y)
            x = _layer_norm(x + _dropped(y, next(keys)), *layer["norms"][1])
        return _of_dense(weights["classes"], x[:, 0]), ()

    def _array(self, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, self.dtype)

    def _square(self) -> Arrays:
        return _dense(self.width, self.width, self.dtype)

    def _attention(self, layer: Arrays, x: jax.Array, key: jax.Array) -> jax.Array:
        batch, length, width = x.shape

        def split(name: str) -> jax.Array:
            y = _of_dense(layer[name], x)
            return y.reshape(batch, length, self.heads, width // self.heads)

        scores = jnp.einsum("blhd,bmhd->bhlm", split("query"), split("key"))
        shares = jax.nn.softmax(scores / math.sqrt(width // self.heads))
        mixed = jnp.einsum("bhlm,bmhd->blhd", _dropped(shares, key), split("value"))
        return _of_dense(layer["mixed"], mixed.reshape(x.shape))


@dataclasses.dataclass(frozen=True)
class ResNet:
    """ResNet-50, in bfloat16 with weights in float32."""

    def weights(self) -> Arrays:
        """The shapes of the weights."""
        found = [_convolution(7, 3, 64)]
        width = 64
        for filters, blocks, _ in STAGES:
            for block in range(blocks):
                found += [
                    _convolution(1, width, filters),
                    _convolution(3, filters, filters),
                    _convolution(1, filters, 4 * filters),
                ]
                if not block:
                    found.append(_convolution(1, width, 4 * filters))
                width = 4 * filters
        return {"convolutions": found, "classes": _dense(width, 1000)}

    def others(self) -> Arrays:
        """Moving means and variances."""
        return [(beta, beta) for _, beta, _ in self.weights()["convolutions"]]

    def logits(
        self, weights: Arrays, x: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Arrays]:
        """Returns the logits and the moments."""
        del key
        left = iter(weights["convolutions"])
        moments = []

        def convolution(x: jax.Array, strides: int = 1) -> jax.Array:
            kernel, beta, gamma = next(left)
            x = jax.lax.conv_general_dilated(
                x,
                kernel.astype("bfloat16"),
                (strides, strides),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
            wide = x.astype("float32")
            mean = wide.mean((0, 1, 2))
            variance = (wide**2).mean((0, 1, 2)) - mean**2
            moments.append((mean, variance))
            scale = gamma * jax.lax.rsqrt(variance + 1e-3)
            return (wide * scale + (beta - mean * scale)).astype("bfloat16")

        x = jax.nn.relu(convolution(x, 2))
        x = jax.lax.reduce_window(
            x,
            -jnp.inf,
            jax.lax.max,
            (1, 3, 3, 1),
            (1, 2, 2, 1),
            "SAME",
        )
        for _, blocks, first in STAGES:
            for block in range(blocks):
                strides = 1 if block else first
                y = jax.nn.relu(convolution(x))
                y = jax.nn.relu(convolution(y, strides))
                y = convolution(y)
                if not block:
                    x = convolution(x, strides)
                x = jax.nn.relu(x + y)
        classes = [each.astype("bfloat16") for each in weights["classes"]]
        return _of_dense(classes, x.mean((1, 2))), moments


def _convolution(size: int, width: int, filters: int) -> Arrays:
    kernel = jax.ShapeDtypeStruct((size, size, width, filters), "float32")
    each = jax.ShapeDtypeStruct((filters,), "float32")
    return kernel, each, each


def _dense(width: int, units: int, dtype: str = "float32") -> Arrays:
    return (
        jax.ShapeDtypeStruct((width, units), dtype),
        jax.ShapeDtypeStruct((units,), dtype),
    )


def _of_dense(weights: Arrays, x: jax.Array) -> jax.Array:
    kernel, bias = weights
    return x @ kernel + bias


def _layer_norm(x: jax.Array, beta: jax.Array, gamma: jax.Array) -> jax.Array:
    wide = x.astype("float32")
    mean = wide.mean(-1, keepdims=True)
    variance = (wide**2).mean(-1, keepdims=True) - mean**2
    scale = gamma.astype("float32") * jax.lax.rsqrt(variance + 1e-3)
    return ((wide - mean) * scale + beta.astype("float32")).astype(x.dtype)


def _dropped(x: jax.Array, key: jax.Array) -> jax.Array:
    kept = jax.random.bernoulli(key, 1 - DROPOUT, x.shape)
    return jnp.where(kept, x / (1 - DROPOUT), 0)
