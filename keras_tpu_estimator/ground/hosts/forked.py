"""Whether this process was forked off one whose devices were in use.

The threads of JAX are not in it, so whoever waits for these waits for ever.
"""

import os

from keras_tpu_estimator.ground.hosts import jax_internals

_cannot_compute = False


def check() -> None:
    """Checks that this process can compute.

    Raises:
        RuntimeError: It cannot.
    """
    if _cannot_compute:
        raise RuntimeError(
            "This process was forked off one that had used JAX, whose threads "
            "are not in it: an estimator would wait for ever. Expected a "
            "process of its own. Start it with "
            'multiprocessing.get_context("spawn"), or fork before the first '
            "call of an estimator or of JAX."
        )


def _note() -> None:
    global _cannot_compute
    _cannot_compute = _cannot_compute or jax_internals.devices_are_in_use()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note)
