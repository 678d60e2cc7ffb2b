"""How much trouble the compiler takes, as each release of JAX is told."""

from typing import Any

import jax

# "O0" of XLA's levels.
_LOWEST_LEVEL = 9


def least_effort() -> dict[str, Any]:
    """Options of a compilation that takes the least trouble for speed."""
    if "jax_exec_time_optimization_effort" in jax.config.values:  # To 0.10.
        return {"exec_time_optimization_effort": -1.0}
    return {"optimization_level": _LOWEST_LEVEL}
