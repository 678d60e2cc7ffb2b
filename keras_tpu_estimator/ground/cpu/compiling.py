"""How long a CPU's compiler takes over what is not worth the time."""

import os
from typing import Any

_LEVEL = "xla_backend_optimization_level"


def quickly(platform: str) -> dict[str, Any]:
    """Options of `jax.jit` for what runs once, such as initial values.

    LLVM takes a third of the time, and the bits are the same. By default JAX
    compiles everything as if it ran for hours. A level in `XLA_FLAGS` stays.

    Args:
        platform: Of the devices that run it, such as "cpu"; others than that
            get no options.

    Returns:
        `compiler_options` of `jax.jit`.

    Example:

    >>> import jax
    >>> from keras_tpu_estimator.ground.cpu.compiling import quickly
    >>> add_one = jax.jit(lambda x: x + 1, compiler_options=quickly("cpu"))
    >>> int(add_one(1))
    2
    """
    is_given = _LEVEL in os.environ.get("XLA_FLAGS", "")
    return {_LEVEL: 1} if platform == "cpu" and not is_given else {}
