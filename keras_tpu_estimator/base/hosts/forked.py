"""Detection of a process that was forked after its parent had used JAX.

JAX's threads do not exist in the child, so any computation would hang.
"""

import os

from keras_tpu_estimator.base.hosts import jax_internals

_cannot_compute = False


def check() -> None:
    """Checks that this process can compute.

    Raises:
        RuntimeError: It was forked after its parent had used JAX.
    """
    if _cannot_compute:
        raise RuntimeError(
            "An estimator needs a process in which JAX can start its threads. "
            "Received: a process that was forked after its parent had used "
            "JAX, where every computation would hang. Start it with "
            'multiprocessing.get_context("spawn"), or fork before the first '
            "call of an estimator or of JAX."
        )


def _note() -> None:
    global _cannot_compute
    _cannot_compute = _cannot_compute or jax_internals.devices_are_in_use()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note)
