"""The devices of a topology, as JAX shows them to a script that is planned.

A script may ask `jax.device_count()` for its batch size.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from unittest import mock

import jax

from keras_tpu_estimator.ground.base.machine import Machine
from keras_tpu_estimator.planning.boards import Board

# It sets the same number, and JAX refuses both.
_FLAG = "--xla_force_host_platform_device_count"

_logger = logging.getLogger("keras_tpu_estimator")


@contextlib.contextmanager
def shown(board: Board) -> Iterator[None]:
    """Has JAX count the cores and hosts of a board in a `with` block.

    The cores are simulated by the CPU, and nothing runs on them. If JAX has
    started before, it keeps the devices that it has, and a warning is logged.

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
    if board.num_hosts == 1:
        yield
        return
    local = board.of_one_host().num_cores
    with (
        mock.patch.object(jax, "process_count", lambda *_: board.num_hosts),
        mock.patch.object(jax, "local_device_count", lambda *_: local),
    ):
        yield
