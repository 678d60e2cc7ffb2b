"""Keeping the variables of all cores equal while each sees its own batch."""

from collections.abc import Iterable
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import keras

from keras_tpu_estimator.mesh.cores import Cores
from keras_tpu_estimator.tracing.variables import Values
from keras_tpu_estimator.tracing.variables import is_seed

# Odd, so that multiples of it are distinct modulo 2**32.
_SEED_STRIDE = 0x9E3779B1


def seed_paths(objects: Mapping[str, keras.Variable]) -> tuple[str, ...]:
    """Paths of the states of Keras's seed generators."""
    return tuple(path for path, v in objects.items() if is_seed(v))


def fold_seeds(
    values: Mapping[str, jax.Array],
    paths: Iterable[str],
    cores: Cores,
    sign: int,
) -> Values:
    """Gives each core a seed of its own, or takes it back.

    Args:
        values: Values by path.
        paths: Those that are seeds and present are changed.
        cores: The cores; one core keeps the seed as it is.
        sign: 1 to give, -1 to take back.

    Returns:
        A dict of all values.
    """
    folded = dict(values)
    if not cores.axes:
        return folded
    shift = cores.core_index().astype("uint32") * jnp.uint32(_SEED_STRIDE)
    for path in paths:
        if path in folded:
            seed = folded[path]
            offset = jnp.stack([shift, jnp.uint32(0)]).astype(seed.dtype)
            folded[path] = seed + offset if sign > 0 else seed - offset
    return folded


def synchronize(
    updates: Mapping[str, jax.Array],
    before: Mapping[str, jax.Array],
    variables: Mapping[str, keras.Variable],
    cores: Cores,
) -> Values:
    """One value for all cores of what each assigned in its forward pass.

    Floating-point state, such as the moving averages of batch normalization,
    is averaged. A variable whose `aggregation` says otherwise is summed or
    taken from the first core, and so are integers. Seeds were told apart by
    `fold_seeds`, which is taken back.

    Args:
        updates: Assigned values by path.
        before: The values before the step, with seeds as `fold_seeds` gave
            them to each core.
        variables: The variables by path.
        cores: The cores.

    Returns:
        Values by path, equal on all cores.
    """

    def one(path: str, value: jax.Array) -> jax.Array:
        aggregation = variables[path].aggregation
        if aggregation == "sum":
            replicas = cores.topology.num_replicas
            return before[path] + replicas * cores.mean(value - before[path])
        if aggregation == "only_first_replica" or not jnp.issubdtype(
            value.dtype, jnp.floating
        ):
            return cores.of_first(value)
        return cores.mean(value)

    if not cores.axes:
        return dict(updates)
    seeds = set(seed_paths(variables))
    shared = fold_seeds(updates, seeds, cores, -1)
    return {
        path: value if path in seeds else one(path, value)
        for path, value in shared.items()
    }
