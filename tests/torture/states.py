"""States of models that are sharded over several cores."""

import jax
import numpy as np
from jax.experimental.layout import Format, Layout

_KEPT_IN_COLUMNS = Layout(major_to_minor=(1, 0))


def spread(value: np.ndarray, is_away: bool = False) -> jax.Array:
    """An array whose rows are sharded over the cores.

    Args:
        value: An array, or a matrix if it is away.
        is_away: Whether it must be copied to be read, as from a device with separate
            memory. Defaults to `False`.
    """
    mesh = jax.make_mesh(
        (jax.device_count(),),
        ("x",),
        axis_types=(jax.sharding.AxisType.Auto,),
    )
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    # NumPy can only borrow arrays with the default layout.
    layout = Format(_KEPT_IN_COLUMNS, rows) if is_away else rows
    return jax.block_until_ready(jax.device_put(value, layout))


def state(size: int, variables: int, is_away: bool = False) -> dict[str, jax.Array]:
    """Random variables by name, sharded over all cores.

    Args:
        size: The total number of bytes.
        variables: The number of variables.
        is_away: See `spread`. Defaults to `False`.
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
