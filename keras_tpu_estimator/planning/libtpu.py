"""Devices that XLA's compiler for TPUs knows, whether they are there or not."""

import functools
import importlib.util
import os

import jax
from jax.experimental import topologies


@functools.cache
def devices(topology: str, **options: object) -> tuple[jax.Device, ...]:
    """The devices of a topology, which compile and do not run.

    Args:
        topology: Its name as libtpu has it, such as "v5e:4x4".
        **options: What libtpu has to know beside the name.

    Returns:
        The same devices in each call.

    Raises:
        ModuleNotFoundError: libtpu is not installed.
        ValueError: libtpu knows no such topology.

    Example:

    >>> from keras_tpu_estimator.planning import libtpu
    >>> len(libtpu.devices("v5e:2x2"))
    4
    """
    if not is_installed():
        raise ModuleNotFoundError(
            "To compile for a TPU takes its compiler, which is in libtpu. "
            "Expected it to be installed: pip install "
            "'keras-tpu-estimator[tpu]', on x86-64 Linux. It needs no TPU.",
            name="libtpu",
        )
    try:
        described = topologies.get_topology_desc(topology, platform="tpu", **options)
    except jax.errors.JaxRuntimeError as error:
        if "INVALID_ARGUMENT" not in str(error):
            raise
        raise ValueError(
            f"The libtpu that is installed knows no topology {topology!r} with "
            f"{options}. Choose another, or update libtpu along with JAX."
        ) from error
    return tuple(described.devices)


def is_installed() -> bool:
    """Whether JAX will find libtpu.

    Example:

    >>> from keras_tpu_estimator.planning import libtpu
    >>> libtpu.is_installed()
    True
    """
    return (
        "TPU_LIBRARY_PATH" in os.environ
        or importlib.util.find_spec("libtpu") is not None
    )
