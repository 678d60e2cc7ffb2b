"""The lookup and the update of one device's rows."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from keras_tpu_estimator.base.mesh.sharded_rows import ShardedRows
from keras_tpu_estimator.front_ends.tables.lookups import Lookups
from keras_tpu_estimator.front_ends.tables.parameters import (
    OptimizationParameters,
    Rows,
    Slots,
)


def looked_up(
    sharded: ShardedRows, rows: Rows, lookups: Lookups, stays_apart: bool
) -> jax.Array:
    """Returns the activations of this device's slice of the batch; each device combines
    its own `rows` for the entire batch, unless the rows of an example stay apart.
    """
    ids, weights = sharded.of_all((lookups.ids, lookups.weights))
    numbers = sharded.own_numbers(ids, len(rows))
    vectors = jnp.take(rows, numbers, axis=0, mode="fill", fill_value=0)
    if stays_apart:
        vectors = vectors if weights is None else vectors * weights[..., None]
    elif weights is None:
        vectors = jnp.sum(vectors, axis=1)
    else:
        vectors = jnp.einsum("bl,bld->bd", weights, vectors)
    return lookups.divided(sharded.own_sum(vectors))


def updated(
    sharded: ShardedRows,
    optimizer: OptimizationParameters,
    state: tuple[Rows, Slots],
    batch: Sequence[tuple[Lookups, jax.Array]],
    rate: jax.Array,
) -> tuple[Rows, Slots]:
    """Returns this device's rows of the table after a step, and their slots, from its
    slice of the batch; the cost depends on the batch, not on the table.
    """
    rows, slots = state
    used, gradient = _used(sharded, len(rows), batch)

    def take(x: jax.Array) -> jax.Array:
        # Rows past the end are dropped later, so any value but zero will do.
        return jnp.take(x, used, axis=0, mode="fill", fill_value=1)

    def put(x: jax.Array, new: jax.Array) -> jax.Array:
        return x.at[used].set(new, mode="drop", indices_are_sorted=True)

    new = optimizer.updated(
        take(rows), {n: take(x) for n, x in slots.items()}, gradient, rate
    )
    return put(rows, new[0]), {n: put(x, new[1][n]) for n, x in slots.items()}


def _used(
    sharded: ShardedRows,
    count: int,
    batch: Sequence[tuple[Lookups, jax.Array]],
) -> tuple[jax.Array, jax.Array]:
    """Returns this device's used rows, each once, and their gradients, in the largest
    possible length: extra rows are past the end.
    """
    numbers, weights, sources, gradients = [], [], [], []
    first = 0
    for lookups, gradient in batch:
        ids, of_ids, gradient = sharded.of_all(
            (lookups.ids, lookups.weights, lookups.divided(gradient))
        )
        gradient = gradient.reshape(-1, gradient.shape[-1])
        # Each gradient is that of an example, or of an id if rows are not combined.
        repeated = ids.size // max(1, len(gradient))
        numbers.append(sharded.own_numbers(ids, count).reshape(-1))
        weights.append(None if of_ids is None else of_ids.reshape(-1))
        sources.append(first + jnp.arange(ids.size) // repeated)
        gradients.append(gradient)
        first += len(gradient)
    # Products, which are larger, are computed in their order.
    ordered, source, *factor = jax.lax.sort(
        (
            jnp.concatenate(numbers),
            jnp.concatenate(sources),
            *_concatenated(weights, numbers),
        ),
        num_keys=1,
    )
    products = jnp.concatenate(gradients)[source]
    for weight in factor:
        products = products * weight[:, None]
    # This includes missing ids.
    is_first = jnp.ones(len(ordered), bool).at[1:].set(ordered[1:] != ordered[:-1])
    which = jnp.cumsum(is_first) - 1
    summed = jax.ops.segment_sum(
        products,
        which,
        num_segments=len(ordered),
        indices_are_sorted=True,
    )
    used = jnp.full(len(ordered), count, ordered.dtype)
    return used.at[which].set(ordered, indices_are_sorted=True), summed


def _concatenated(
    weights: Sequence[jax.Array | None], numbers: Sequence[jax.Array]
) -> list[jax.Array]:
    """Returns the weights of all, or `None` if none has weights."""
    if all(weight is None for weight in weights):
        return []
    filled = [
        jnp.ones(len(ids), "float32") if weight is None else weight
        for weight, ids in zip(weights, numbers, strict=True)
    ]
    return [jnp.concatenate(filled)]
