"""Agreements of many simulated processes: `python -m ... simulated_hosts 256`.

Each process is a thread with its own client of one real coordination service.
"""

import json
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

# JAX has no public API for a service with many clients in one process.
from jax._src.lib import _jax

from keras_tpu_estimator.base.hosts.cluster import Cluster
from keras_tpu_estimator.base.hosts.host_exchange import HostExchange
from keras_tpu_estimator.base.hosts.membership import Membership

_ROUNDS = 5
_TIMEOUTS = {"heartbeat_timeout": 600, "shutdown_timeout": 60}


class CountingClient:
    """A client that counts its requests."""

    def __init__(self, client: Any):
        self._client = client
        self.requests = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.requests += 1
            return method(*args, **kwargs)

        return counted


def main(count: int) -> None:
    """Prints the milliseconds and the number of requests of an agreement."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    service = _jax.get_distributed_runtime_service(address, count, **_TIMEOUTS)
    clients = [
        _jax.get_distributed_runtime_client(
            address, index, init_timeout=300, use_compression=True, **_TIMEOUTS
        )
        for index in range(count)
    ]
    _on_all([client.connect for client in clients])
    counting = [CountingClient(client) for client in clients]
    exchanges = [
        HostExchange(
            Membership(Cluster(address, count, index), client),
            "a benchmark",
            patience_secs=600,
        )
        for index, client in enumerate(counting)
    ]
    times = []
    for _ in range(_ROUNDS):
        since = time.perf_counter()
        _on_all([exchange.barrier for exchange in exchanges])
        times.append(time.perf_counter() - since)
    print(
        json.dumps(
            {
                "msecs": 1000 * statistics.median(times),
                "requests": max(each.requests for each in counting) / _ROUNDS,
            }
        ),
        flush=True,
    )
    # Otherwise each client waits for all others before it leaves the service.
    os._exit(0 if service is not None else 1)


def _on_all(calls: list[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(int(sys.argv[1]))
