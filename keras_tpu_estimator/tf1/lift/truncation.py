"""Integers that do not fit the devices' 32 bits.

Devices keep integers in 32 bits between steps. A step that computes with 64 bits
also outputs a flag for each result on each core, which the host checks after the
loop.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

# The flag for any tensor. No tensor has this name.
_ANY = ""


class CutIntegersError(ValueError):
    """A step computed integers that do not fit the devices' 32 bits."""


def truncation_flags(differing: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns the output `CHECKS` of a step: flags of shape `[1]`, true if truncated.

    The flags of all cores stay side by side, because a sum over cores would take time
    in each step.
    """
    flags = {name: jnp.any(where)[None] for name, where in differing.items()}
    if not flags:
        return {}
    return {**flags, _ANY: jnp.any(jnp.stack([*flags.values()]), axis=0)}


def check_not_truncated(cut: Mapping[str, jax.Array]) -> None:
    """Raises an error if the output `CHECKS` of finished steps has a set flag."""
    if not cut or not _is_set(cut[_ANY]):
        return
    names = sorted(name for name, flag in cut.items() if name and _is_set(flag))
    raise CutIntegersError(
        "Integers must fit 32 bits when they leave a step, because devices "
        "keep no 64 bits between steps. Received larger ones in "
        f"{names}, which are variables or tensors of model_fn. Count in larger "
        "units, split each into two, or compute them on the host: in input_fn, "
        "host_call, or from the predictions."
    )


def _is_set(flag: jax.Array) -> bool:
    """Returns whether a flag is set on any device of this host."""
    return any(np.any(shard.data) for shard in flag.addressable_shards)
