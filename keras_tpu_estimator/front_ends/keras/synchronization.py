"""Synchronization of variables over replicas with different batches."""

from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import keras

from keras_tpu_estimator.base.mesh.cores import Cores
from keras_tpu_estimator.base.tracing.variables import ArraysByPath, is_seed

# An odd number, so that its multiples are distinct modulo 2**32.
_SEED_STRIDE = 0x9E3779B1


def seed_paths(objects: Mapping[str, keras.Variable]) -> tuple[str, ...]:
    """Returns the paths of Keras's seed states, and of JAX keys."""
    return tuple(path for path, v in objects.items() if is_seed(v))


def fold_seeds(
    values: Mapping[str, jax.Array],
    paths: Iterable[str],
    cores: Cores,
    sign: int,
) -> ArraysByPath:
    """Returns all values with the seeds at `paths` made different on each replica
    (`sign` 1), or equal again (-1); one device keeps the seed.
    """
    folded = dict(values)
    if not cores.axes:
        return folded
    shift = cores.core_index().astype("uint32") * jnp.uint32(_SEED_STRIDE)
    for path in paths:
        if path in folded:
            seed = folded[path]
            zeros = [jnp.uint32(0)] * (seed.shape[-1] - 1)
            offset = jnp.stack([shift, *zeros]).astype(seed.dtype)
            folded[path] = seed + offset if sign > 0 else seed - offset
    return folded


def synchronize(
    updates: Mapping[str, jax.Array],
    before: Mapping[str, jax.Array],
    variables: Mapping[str, keras.Variable],
    cores: Cores,
    differing: Mapping[str, bool],
) -> ArraysByPath:
    """Returns values by path, equal on all replicas, combined from those that replicas
    assigned in their forward passes.

    The `aggregation` of a variable determines the result:

    | | floating point, complex | integers | booleans |
    |---|---|---|---|
    | `"none"` | the mean | the first core's | the first core's |
    | `"mean"` | the mean | the mean, rounded down | true if on all cores |
    | `"sum"` | with the changes of all cores | the same | changed if by any |
    | `"only_first_replica"` | the first core's | the same | the same |

    So moving averages of batch normalization are averaged, and counts are added up.
    `before` has seeds as changed by `fold_seeds`, whose changes are undone. Values that
    do not differ between replicas, such as a count of steps, need no communication.
    """
    if not cores.axes:
        return dict(updates)
    seeds = set(seed_paths(variables))
    shared = fold_seeds(updates, seeds, cores, -1)
    are_equal = seeds | {
        path
        for path, differs in differing.items()
        if not differs and variables[path].aggregation != "sum"
    }
    return {
        path: value
        if path in are_equal
        else _of_all(variables[path].aggregation, before[path], value, cores)
        for path, value in shared.items()
    }


def _of_all(
    aggregation: str, before: jax.Array, value: jax.Array, cores: Cores
) -> jax.Array:
    """Returns one value for those of the replicas, in their dtype."""
    is_inexact = jnp.issubdtype(value.dtype, jnp.inexact)
    if aggregation == "sum":
        return _with_changes(before, value, cores)
    if aggregation == "mean" and not is_inexact:
        return _rounded_mean(value, cores)
    if aggregation != "only_first_replica" and is_inexact:
        return cores.mean(value)
    return cores.of_first(value)


def _with_changes(before: jax.Array, value: jax.Array, cores: Cores) -> jax.Array:
    """Returns the earlier value plus the changes of all replicas."""
    if value.dtype == bool:
        return before ^ (cores.sum(value ^ before) > 0)
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        # They wrap around in both directions.
        return before + cores.sum(value - before)
    wide = jnp.promote_types(value.dtype, jnp.float32)
    before, after = before.astype(wide), value.astype(wide)
    return (before + cores.sum(after - before)).astype(value.dtype)


def _rounded_mean(value: jax.Array, cores: Cores) -> jax.Array:
    """Returns the mean of integers, without their sum, which may overflow."""
    if value.dtype == bool:
        return cores.sum(~value) == 0
    count = cores.topology.num_replicas
    wide = value if value.dtype.itemsize >= 4 else value.astype(jnp.int32)
    mean = cores.sum(wide // count) + cores.sum(wide % count) // count
    return mean.astype(value.dtype)
