"""Workers of Ray Train that Ray has not joined to a cluster of JAX.

Ray joins workers on GPUs and TPUs, but not on CPUs, and it sets no variables. Workers
on CPUs therefore find each other through Ray.
"""

import contextlib
import importlib
import socket
import sys
from typing import Any

from keras_tpu_estimator.base.hosts.starter import Definition


def worker_definition() -> Definition | None:
    """Returns the cluster of this worker of Ray Train; `None` in other processes.

    Each worker must call this. The first one selects a port and broadcasts its address.
    """
    context = _context()
    if context is None or context.get_world_size() == 1:
        return None
    count, number = context.get_world_size(), context.get_world_rank()
    try:
        collective = importlib.import_module("ray.train.collective")
    except ImportError as error:
        raise RuntimeError(
            "Workers of Ray Train must have joined, or be able to exchange an address. "
            f"Received: worker {number} of {count}, with a version of Ray Train that "
            "supports neither. Set RAY_TRAIN_V2_ENABLED=1, or call "
            "keras_tpu_estimator.initialize(coordinator_address='host:port', "
            f"num_processes={count}, process_id={number}), or "
            "initialize(num_processes=1) to train alone in this process."
        ) from error
    address = collective.broadcast_from_rank_zero(None if number else _free_address())
    return Definition("Ray Train", address, count, number)


def _context() -> Any:
    """Returns Ray's context of this worker; `None` elsewhere."""
    train = sys.modules.get("ray.train")
    context = None
    # Ray Train raises errors of several types outside its workers.
    with contextlib.suppress(Exception):
        context = None if train is None else train.get_context()
        if context is not None and context.get_world_rank() is None:
            return None
    return context


def _free_address() -> str:
    """Returns the address of this machine, with a free port."""
    host = importlib.import_module("ray.util").get_node_ip_address()
    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"{host}:{probe.getsockname()[1]}"
