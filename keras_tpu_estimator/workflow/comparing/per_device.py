"""The part of a step that runs on several devices, evaluated with observations.

The idea: the part runs in the same way a second time, with the statistics of each
device as more outputs. Those of all devices give the statistics of the whole batch.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend import core as jex
from jax.sharding import PartitionSpec

NAME = "shard_map"
# Results, statistics by number, and tensors by name that are equal on all devices.
Results: TypeAlias = tuple[list[Any], dict[int, jax.Array], dict[str, Any]]
# Evaluates the part on one device.
Evaluate: TypeAlias = Callable[[jex.ClosedJaxpr, Sequence[Any]], Results]


def evaluated(equation: Any, tensors: Sequence[Any], evaluate: Evaluate) -> Results:
    """Returns the results of an operation that runs a function on several devices.

    The statistics are those of the values on all devices.
    """
    params = equation.params
    axes = axes_of(equation)
    body = jex.ClosedJaxpr(params["jaxpr"], [])

    def local(*arguments: Any) -> Results:
        results, statistics, equal = evaluate(body, arguments)
        return results, {n: row[None] for n, row in statistics.items()}, equal

    run = jax.shard_map(
        local,
        mesh=params["mesh"],
        axis_names={*axes},
        in_specs=tuple(params["in_specs"]),
        out_specs=([*params["out_specs"]], PartitionSpec(axes), PartitionSpec()),
        check_vma=False,
    )
    results, statistics, equal = run(*tensors)
    return results, {n: _combined(rows) for n, rows in statistics.items()}, equal


def axes_of(equation: Any) -> tuple[str, ...]:
    """Returns the axes of the mesh over which an operation runs a function."""
    names = equation.params["newly_manual_axes"]
    return tuple(n for n in equation.params["mesh"].axis_names if n in names)


def devices_of(equation: Any) -> int:
    """Returns the number of devices on which an operation runs a function."""
    shape: Mapping[str, int] = equation.params["mesh"].shape
    count = 1
    for axis in axes_of(equation):
        count *= shape[axis]
    return count


def _combined(statistics: jax.Array) -> jax.Array:
    """Returns the statistics of all devices, from those of each in a row."""
    mean, absolute, root, least, greatest = statistics.T
    return jnp.stack(
        [
            jnp.mean(mean),
            jnp.mean(absolute),
            jnp.sqrt(jnp.mean(jnp.square(root))),
            jnp.min(least),
            jnp.max(greatest),
        ]
    )
