"""States of models that lie over several cores."""

import jax
import numpy as np
from jax.experimental.layout import Format, Layout

_KEPT_IN_COLUMNS = Layout(major_to_minor=(1, 0))


def spread(value: np.ndarray, is_away: bool = False) -> jax.Array:
    """An array of which each core has some rows.

    Args:
        value: An array; a matrix if it is away.
        is_away: Whether it has to be copied to be read, as from a device that
            has memory of its own. Defaults to `False`.
    """
    mesh = jax.make_mesh(
        (jax.device_count(),),
        ("x",),
        axis_types=(jax.sharding.AxisType.Auto,),
    )
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    # NumPy is lent only what has the usual layout.
    layout = Format(_KEPT_IN_COLUMNS, rows) if is_away else rows
    return jax.block_until_ready(jax.device_put(value, layout))


def state(size: int, variables: int, is_away: bool = False) -> dict[str, jax.Array]:
    """Random numbers that lie over all cores, by name.

    Args:
        size: How many bytes in all.
        variables: How many variables they are in.
        is_away: As in `spread`. Defaults to `False`.
    """
    rng = np.random.default_rng(0)
    cores = jax.device_count()
    rows = size // variables // 4 // cores * cores
    return {
        f"variable_{number:04}": spread(
            rng.standard_normal((rows, 1), "float32"), is_away
        )
        for number in range(variables)
    }
