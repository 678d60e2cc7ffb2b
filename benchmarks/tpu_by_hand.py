"""Training loops for a TPU as good as one writes them, without Keras.

Moments take one pass, the hardware makes the random bits, and replicas that
share an optimizer's slots scatter gradients and gather variables.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any
from typing import Protocol
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

Arrays: TypeAlias = Any
# Of weights, slots, a gradient and the number of the step.
Optimizer: TypeAlias = Callable[..., tuple[jax.Array, tuple[jax.Array, ...]]]

CLASSES, WORDS, DROPOUT = 10, 1024, 0.1
# Filters, blocks, and the strides of the first.
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
_AXIS = "cores"
_WHOLE, _SPLIT = PartitionSpec(), PartitionSpec(None, _AXIS)


class Model(Protocol):
    """A network by hand."""

    def weights(self) -> Arrays:
        """Their shapes."""

    def others(self) -> Arrays:
        """Shapes of what is averaged over the cores, and not trained."""

    def logits(
        self, weights: Arrays, x: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Arrays]:
        """The logits, and what the others were in this batch."""


def adam(
    weight: jax.Array,
    slots: tuple[jax.Array, ...],
    gradient: jax.Array,
    step: jax.Array,
    decay: float = 0.0,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Adam with two slots."""
    first, second = slots
    count = step.astype(weight.dtype) + 1
    rate = 1e-3 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    first = first + (gradient - first) * 0.1
    second = second + (gradient**2 - second) * 0.001
    weight = weight - weight * decay
    weight = weight - first * rate / (jnp.sqrt(second) + 1e-7)
    return weight, (first, second)


def adamw(*args: Any) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """The same, with decay of all weights."""
    return adam(*args, decay=1e-5)


def momentum(
    weight: jax.Array,
    slots: tuple[jax.Array, ...],
    gradient: jax.Array,
    step: jax.Array,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Gradient descent with momentum."""
    del step
    slot = slots[0] * 0.9 - gradient * 0.1
    return weight + slot, (slot,)


_SLOTS = {adam: 2, adamw: 2, momentum: 1}


@dataclasses.dataclass(frozen=True)
class ByHand:
    """A jitted scan over steps, on all cores.

    Attributes:
        model: The network.
        optimizer: How it is trained.
        shares_slots: Whether cores have a part each of what the optimizer
            keeps (ZeRO-1). Defaults to `False`.
        draws: Whether the network draws numbers. Defaults to `False`.
    """

    model: Model
    optimizer: Optimizer
    shares_slots: bool = False
    draws: bool = False

    def lowered(
        self, devices: Any, batches: tuple[Any, Any]
    ) -> tuple[jax.stages.Lowered, dict[str, Arrays]]:
        """The loop, and what it takes by kind.

        Args:
            devices: The cores.
            batches: Shapes of features and labels, of all steps and cores.
        """
        mesh = Mesh(devices, _AXIS)
        weights = self.model.weights()
        slots = [
            [leaf] * _SLOTS[self.optimizer] for leaf in jax.tree.leaves(weights)
        ]
        key = jax.eval_shape(lambda: jax.random.key(0, impl="rbg"))
        step = jax.ShapeDtypeStruct((), "int32")
        state = (weights, self.model.others(), slots, key, step)
        places = (
            _WHOLE,
            _WHOLE,
            jax.tree.map(self._place_of_slot(len(devices)), slots),
            _WHOLE,
            _WHOLE,
        )
        run = jax.shard_map(
            self._steps,
            mesh=mesh,
            in_specs=(places, _SPLIT),
            out_specs=(places, _WHOLE),
            check_vma=False,
        )

        def put(leaf: Any, place: PartitionSpec) -> jax.ShapeDtypeStruct:
            there = NamedSharding(mesh, place)
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=there)

        state = tuple(
            jax.tree.map(put, part, place)
            if index == 2
            else jax.tree.map(lambda leaf: put(leaf, _WHOLE), part)
            for index, (part, place) in enumerate(
                zip(state, places, strict=True)
            )
        )
        given = jax.tree.map(lambda leaf: put(leaf, _SPLIT), batches)
        kinds = {"state": state, "input": given}
        return jax.jit(run, donate_argnums=0).lower(state, given), kinds

    def _place_of_slot(self, cores: int) -> Callable[[Any], PartitionSpec]:
        def place(leaf: Any) -> PartitionSpec:
            is_shared = self.shares_slots and leaf.shape[0] % cores == 0
            return PartitionSpec(_AXIS) if is_shared else _WHOLE

        return place

    def _steps(self, state: Arrays, batches: Any) -> tuple[Arrays, jax.Array]:
        return jax.lax.scan(self._step, state, batches)

    def _step(self, state: Arrays, batch: Any) -> tuple[Arrays, jax.Array]:
        weights, others, slots, key, step = state
        own = key
        if self.draws:
            key, drawn = jax.random.split(key)
            own = jax.random.fold_in(drawn, jax.lax.axis_index(_AXIS))

        def loss(weights: Arrays) -> tuple[jax.Array, Arrays]:
            logits, seen = self.model.logits(weights, batch[0], own)
            logits = jax.nn.log_softmax(logits.astype("float32"))
            labels = jax.nn.one_hot(batch[1], logits.shape[-1])
            return -(labels * logits).sum(-1).mean(), seen

        (value, seen), gradients = jax.value_and_grad(loss, has_aux=True)(
            weights
        )
        value, seen = jax.lax.pmean((value, seen), _AXIS)
        others = jax.tree.map(
            lambda before, now: before * 0.99 + now * 0.01, others, seen
        )
        leaves, tree = jax.tree.flatten(weights)
        updated = [
            self._updated(*each, step)
            for each in zip(
                leaves, slots, jax.tree.leaves(gradients), strict=True
            )
        ]
        weights = jax.tree.unflatten(tree, [weight for weight, _ in updated])
        slots = [list(own) for _, own in updated]
        return (weights, others, slots, key, step + 1), value

    def _updated(
        self,
        weight: jax.Array,
        slots: list[jax.Array],
        gradient: jax.Array,
        step: jax.Array,
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        if slots[0].shape == weight.shape:
            gradient = jax.lax.pmean(gradient, _AXIS)
            return self.optimizer(weight, tuple(slots), gradient, step)
        total = jax.lax.psum_scatter(gradient, _AXIS, tiled=True)
        rows = slots[0].shape[0]
        first = jax.lax.axis_index(_AXIS) * rows
        part, own = self.optimizer(
            jax.lax.dynamic_slice_in_dim(weight, first, rows),
            tuple(slots),
            total / jax.lax.axis_size(_AXIS),
            step,
        )
        return jax.lax.all_gather(part, _AXIS, tiled=True), own


@dataclasses.dataclass(frozen=True)
class Mlp:
    """Dense layers.

    Attributes:
        sizes: Features, hidden units and classes.
    """

    sizes: tuple[int, ...]

    def weights(self) -> Arrays:
        """Their shapes."""
        return [
            _dense(*pair)
            for pair in zip(self.sizes, self.sizes[1:], strict=False)
        ]

    def others(self) -> Arrays:
        """None."""
        return ()

    def logits(
        self, weights: Arrays, x: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Arrays]:
        """The logits, and nothing."""
        del key
        for kernel, bias in weights[:-1]:
            x = jax.nn.relu(x @ kernel + bias)
        kernel, bias = weights[-1]
        return x @ kernel + bias, ()


@dataclasses.dataclass(frozen=True)
class Bert:
    """Encoder layers in bfloat16, with a classifier on the first word.

    Attributes:
        layers: How many.
        width: Numbers of a word.
        heads: Into how many parts attention splits them.
    """

    layers: int
    width: int
    heads: int

    def weights(self) -> Arrays:
        """Their shapes."""
        wide, norm = 4 * self.width, (_bfloat16(self.width),) * 2
        layer = {
            **{name: self._square() for name in ("query", "key", "value")},
            "mixed": self._square(),
            "wide": _dense(self.width, wide, "bfloat16"),
            "narrow": _dense(wide, self.width, "bfloat16"),
            "norms": (norm, norm),
        }
        return {
            "words": _bfloat16(WORDS, self.width),
            "layers": [layer] * self.layers,
            "classes": _dense(self.width, CLASSES, "bfloat16"),
        }

    def others(self) -> Arrays:
        """None."""
        return ()

    def logits(
        self, weights: Arrays, x: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Arrays]:
        """The logits, and nothing."""
        keys = iter(jax.random.split(key, 3 * self.layers))
        x = weights["words"][x]
        for layer in weights["layers"]:
            y = self._attention(layer, x, next(keys))
            x = _layer_norm(x + _dropped(y, next(keys)), *layer["norms"][0])
            y = jax.nn.gelu(_of_dense(layer["wide"], x), approximate=False)
            y = _of_dense(layer["narrow"], y)
            x = _layer_norm(x + _dropped(y, next(keys)), *layer["norms"][1])
        return _of_dense(weights["classes"], x[:, 0]), ()

    def _square(self) -> Arrays:
        return _dense(self.width, self.width, "bfloat16")

    def _attention(
        self, layer: Arrays, x: jax.Array, key: jax.Array
    ) -> jax.Array:
        batch, length, width = x.shape

        def split(name: str) -> jax.Array:
            y = _of_dense(layer[name], x)
            return y.reshape(batch, length, self.heads, width // self.heads)

        scores = jnp.einsum("blhd,bmhd->bhlm", split("query"), split("key"))
        shares = jax.nn.softmax(scores / math.sqrt(width // self.heads))
        mixed = jnp.einsum(
            "bhlm,bmhd->blhd", _dropped(shares, key), split("value")
        )
        return _of_dense(layer["mixed"], mixed.reshape(x.shape))


@dataclasses.dataclass(frozen=True)
class ResNet:
    """ResNet-50, in bfloat16 with weights in float32."""

    def weights(self) -> Arrays:
        """Their shapes."""
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
        """The logits, and the moments."""
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


def _bfloat16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "bfloat16")


def _layer_norm(x: jax.Array, beta: jax.Array, gamma: jax.Array) -> jax.Array:
    wide = x.astype("float32")
    mean = wide.mean(-1, keepdims=True)
    variance = (wide**2).mean(-1, keepdims=True) - mean**2
    scale = gamma.astype("float32") * jax.lax.rsqrt(variance + 1e-3)
    return ((wide - mean) * scale + beta.astype("float32")).astype(x.dtype)


def _dropped(x: jax.Array, key: jax.Array) -> jax.Array:
    kept = jax.random.bernoulli(key, 1 - DROPOUT, x.shape)
    return jnp.where(kept, x / (1 - DROPOUT), 0)
