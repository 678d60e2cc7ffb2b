"""Optimized training loops for a TPU in plain JAX.

Replicas that share optimizer slots scatter gradients and gather variables.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.tpu_models_by_hand import Arrays

# A function of weights, slots, a gradient and the step.
Optimizer: TypeAlias = Callable[..., tuple[jax.Array, tuple[jax.Array, ...]]]

_AXIS = "cores"
_WHOLE, _SPLIT = PartitionSpec(), PartitionSpec(None, _AXIS)


class Model(Protocol):
    """A network in plain JAX."""

    def weights(self) -> Arrays:
        """The shapes of the weights."""

    def others(self) -> Arrays:
        """The shapes of untrained values, which are averaged over the cores."""

    def logits(
        self, weights: Arrays, x: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Arrays]:
        """Returns the logits, and the untrained values of this batch."""


def adam(
    weight: jax.Array,
    slots: tuple[jax.Array, ...],
    gradient: jax.Array,
    step: jax.Array,
    decay: float = 0.0,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Updates a weight by Adam."""
    first, second = slots
    count = step.astype(weight.dtype) + 1
    rate = 1e-3 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    first = first + (gradient - first) * 0.1
    second = second + (gradient**2 - second) * 0.001
    weight = weight - weight * decay
    weight = weight - first * rate / (jnp.sqrt(second) + 1e-7)
    return weight, (first, second)


def adamw(*args: Any) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Updates a weight by Adam with weight decay."""
    return adam(*args, decay=1e-5)


def momentum(
    weight: jax.Array,
    slots: tuple[jax.Array, ...],
    gradient: jax.Array,
    step: jax.Array,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Updates a weight by gradient descent with momentum."""
    del step
    slot = slots[0] * 0.9 - gradient * 0.1
    return weight + slot, (slot,)


_SLOTS = {adam: 2, adamw: 2, momentum: 1}


@dataclasses.dataclass(frozen=True)
class ByHand:
    """A jitted scan over steps, on all cores.

    Attributes:
        model: The network.
        optimizer: The update of a weight.
        shares_slots: Whether optimizer slots are sharded over the cores (ZeRO-1).
            Defaults to `False`.
        draws: Whether the network uses random numbers. Defaults to `False`.
    """

    model: Model
    optimizer: Optimizer
    shares_slots: bool = False
    draws: bool = False

    def lowered(
        self, devices: Any, batches: tuple[Any, Any]
    ) -> tuple[jax.stages.Lowered, dict[str, Arrays]]:
        """Returns the lowered loop, and its arguments by kind.

        Args:
            devices: The cores.
            batches: The shapes of features and labels for all steps and cores.
        """
        mesh = Mesh(devices, _AXIS)
        weights = self.model.weights()
        slots = [[leaf] * _SLOTS[self.optimizer] for leaf in jax.tree.leaves(weights)]
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
            for index, (part, place) in enumerate(zip(state, places, strict=True))
        )
        given = jax.tree.map(lambda leaf: put(leaf, _SPLIT), batches)
        kinds = {"state": state, "input": given}
        return jax.jit(run, donate_argnums=0).lower(state, given), kinds

    def _place_of_slot(self, cores: int) -> Callable[[Any], PartitionSpec]:
        def place(leaf: Any) -> PartitionSpec:
            is_unbatched = self.shares_slots and leaf.shape[0] % cores == 0
            return PartitionSpec(_AXIS) if is_unbatched else _WHOLE

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

        (value, seen), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
        value, seen = jax.lax.pmean((value, seen), _AXIS)
        others = jax.tree.map(
            lambda before, now: before * 0.99 + now * 0.01, others, seen
        )
        leaves, tree = jax.tree.flatten(weights)
        updated = [
            self._updated(*each, step)
            for each in zip(leaves, slots, jax.tree.leaves(gradients), strict=True)
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
