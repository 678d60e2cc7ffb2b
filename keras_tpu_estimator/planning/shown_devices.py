"""The devices of a topology, as JAX shows them to a script that is planned.

A script may ask `jax.device_count()` for its batch size.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax

from keras_tpu_estimator.ground.base.machine import Machine
from keras_tpu_estimator.ground.hosts import this_process
from keras_tpu_estimator.planning.boards import Board

# It sets the same number, and JAX refuses both.
_FLAG = "--xla_force_host_platform_device_count"

_logger = logging.getLogger("keras_tpu_estimator")


@contextlib.contextmanager
def shown(board: Board) -> Iterator[None]:
    """Has JAX count the cores and hosts of a board in a `with` block.

    The cores are simulated by the CPU, and nothing runs on them. If JAX has
    started before, it keeps the devices that it has, and a warning is logged.
    This process is the first host, and waits for no others.

    Args:
        board: The board.
    """
    if "JAX_PLATFORMS" not in os.environ:
        # The devices of this machine have no part in it.
        jax.config.update("jax_platforms", "cpu")
    if _FLAG not in os.environ.get("XLA_FLAGS", ""):
        try:
            jax.config.update("jax_num_cpu_devices", board.num_cores)
        except RuntimeError:
            _logger.warning(
                "JAX has started before the script is planned, so "
                "`jax.device_count()` returns %d, and %s has %d cores.",
                len(Machine.here().devices),
                board.name,
                board.num_cores,
            )
    before = this_process.settled()
    this_process.settle(this_process.Alone(ignores_calls=True))
    try:
        with contextlib.ExitStack() as stack:
            for module, name, shown_by in _functions(board):
                stack.enter_context(mock.patch.object(module, name, shown_by))
            yield
    finally:
        this_process.settle(before)


def _functions(board: Board) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Yields functions of JAX that a script may call, as they are shown."""
    # There are no others to wait for.
    yield jax.distributed, "initialize", lambda *_, **__: None
    yield jax, "default_backend", lambda: board.platform
    local, devices = board.of_one_host().num_cores, jax.devices

    def of_all(backend: str | None = None) -> list[jax.Device]:
        return devices(None if backend == board.platform else backend)

    def of_host(
        process_index: int | None = None,
        backend: str | None = None,
        host_id: int | None = None,
    ) -> list[jax.Device]:
        first = local * (process_index or host_id or 0)
        return of_all(backend)[first : first + local]

    yield jax, "devices", of_all
    yield jax, "local_devices", of_host
    yield jax, "device_count", lambda backend=None: len(of_all(backend))
    yield jax, "local_device_count", lambda backend=None: len(of_host(None, backend))
    yield jax, "process_count", lambda backend=None: board.num_hosts
    yield jax, "process_indices", lambda backend=None: [*range(board.num_hosts)]
