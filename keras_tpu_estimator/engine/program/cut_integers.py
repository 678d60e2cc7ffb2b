"""Integers of 64 bits that devices could not keep in 32.

A step that computes with 64 bits leaves a flag for each of its results. The
host reads one of them with the results of a loop.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from keras_tpu_estimator.engine.program.steps import CUT
from keras_tpu_estimator.engine.program.steps import Outputs
from keras_tpu_estimator.ground.mesh.cores import Cores

# No tensor has this name.
_ANY = ""


class CutIntegersError(ValueError):
    """A step has made integers that do not fit the devices' 32 bits."""


def flags(
    differing: Mapping[str, jax.Array], cores: Cores
) -> dict[str, jax.Array]:
    """Whether results of a step were cut off, by name, on any core.

    Args:
        differing: Where each of the results was.
        cores: The cores, inside `per_core`.

    Returns:
        The output `CUT` of a step.
    """
    found = {name: jnp.any(where) for name, where in differing.items()}
    if not found:
        return {}
    names = [*found]
    of_all = cores.sum(jnp.stack([found[name] for name in names])) > 0
    by_name = {name: of_all[number] for number, name in enumerate(names)}
    return {**by_name, _ANY: jnp.any(of_all)}


def of_steps(outputs: Outputs) -> Outputs:
    """Outputs of several steps, with one flag for all of these steps."""
    if CUT not in outputs:
        return outputs
    return {**outputs, CUT: jax.tree.map(jnp.any, outputs[CUT])}


def check(cut: Mapping[str, jax.Array]) -> None:
    """Checks flags of steps that the devices have made.

    Args:
        cut: The output `CUT` of steps, or nothing.

    Raises:
        CutIntegersError: Integers were cut off.
    """
    if not cut or not cut[_ANY]:
        return
    names = sorted(name for name, flag in cut.items() if name and flag)
    raise CutIntegersError(
        "Integers must fit 32 bits when they leave a step, because devices "
        "keep no 64 bits between steps. Received larger ones in "
        f"{names}, which are variables or tensors of model_fn. Count in larger "
        "units, split them into two, or compute them on the host: in input_fn, "
        "host_call, or from the predictions."
    )
