"""Integers of 64 bits that devices could not keep in 32.

A step that computes with 64 bits leaves a flag for each of its results, on each
core. A host reads one flag of each of its cores, with the results of a loop.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

# No tensor has this name.
_ANY = ""


class CutIntegersError(ValueError):
    """A step has made integers that do not fit the devices' 32 bits."""


def flags(differing: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Whether results of a step were cut off, by name: arrays of shape `[1]`.

    Devices leave the flags of all cores side by side, because a sum over cores
    would take time in each step.

    Args:
        differing: Where each of the results was.

    Returns:
        The output `CUT` of a step.
    """
    found = {name: jnp.any(where)[None] for name, where in differing.items()}
    if not found:
        return {}
    return {**found, _ANY: jnp.any(jnp.stack([*found.values()]), axis=0)}


def check(cut: Mapping[str, jax.Array]) -> None:
    """Checks flags of steps that the devices have made.

    Args:
        cut: The output `CUT` of steps, or nothing.

    Raises:
        CutIntegersError: Integers were cut off.
    """
    if not cut or not _is_set(cut[_ANY]):
        return
    names = sorted(name for name, flag in cut.items() if name and _is_set(flag))
    raise CutIntegersError(
        "Integers must fit 32 bits when they leave a step, because devices "
        "keep no 64 bits between steps. Received larger ones in "
        f"{names}, which are variables or tensors of model_fn. Count in larger "
        "units, split them into two, or compute them on the host: in input_fn, "
        "host_call, or from the predictions."
    )


def _is_set(flag: jax.Array) -> bool:
    """Returns whether a flag is set on any device of this host."""
    return any(np.any(shard.data) for shard in flag.addressable_shards)
