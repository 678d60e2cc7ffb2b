"""Several hosts in one process: a thread each, and a store in memory."""

import concurrent.futures
import threading
import time

import jax
import pytest

from keras_tpu_estimator.base.hosts.agreement import Hosts
from keras_tpu_estimator.base.hosts.cluster import Cluster
from keras_tpu_estimator.base.hosts.membership import Membership
from keras_tpu_estimator.base.upstream import jax_clusters


class Store:
    """The key-value store of JAX's coordination service."""

    def __init__(self):
        self.values = {}
        self.is_gone = False
        self._changed = threading.Condition()

    def key_value_set_bytes(self, key, value, allow_overwrite=False):
        with self._changed:
            self._check()
            assert allow_overwrite or key not in self.values, key
            self.values[key] = value
            self._changed.notify_all()

    def key_value_set(self, key, value, allow_overwrite=False):
        self.key_value_set_bytes(key, value.encode(), allow_overwrite)

    def blocking_key_value_get_bytes(self, key, timeout_in_ms):
        with self._changed:
            self._check()
            if not self._changed.wait_for(
                lambda: key in self.values or self.is_gone,
                min(timeout_in_ms / 1000, 0.05),
            ):
                raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: ...")
            self._check()
            return self.values[key]

    def key_value_try_get(self, key):
        with self._changed:
            self._check()
            if key not in self.values:
                raise jax.errors.JaxRuntimeError("NOT_FOUND: ...")
            return self.values[key].decode()

    def key_value_increment(self, key, increment):
        with self._changed:
            self._check()
            total = int(self.values.get(key, b"0")) + increment
            self.values[key] = str(total).encode()
            return total

    def key_value_dir_get_bytes(self, folder):
        with self._changed:
            self._check()
            return [
                (key, value)
                for key, value in self.values.items()
                if key.startswith(folder + "/")
            ]

    def key_value_dir_get(self, folder):
        found = self.key_value_dir_get_bytes(folder)
        return [(key, value.decode()) for key, value in found]

    def key_value_delete(self, key):
        with self._changed:
            self._check()
            for each in [*self.values]:
                if each == key or each.startswith(key + "/"):
                    del self.values[each]

    def _check(self):
        if self.is_gone:
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: Socket closed")


@pytest.fixture
def store(monkeypatch):
    """The key-value store that the hosts share."""
    store = Store()
    monkeypatch.setattr(jax_clusters, "coordination_client", lambda: store)
    return store


@pytest.fixture
def on_each(store):
    """Runs a function of a host's number for several hosts at once."""

    def run(function, count=2):
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            futures = [pool.submit(function, host) for host in range(count)]
        return [future.exception() or future.result() for future in futures]

    return run


@pytest.fixture
def clock(monkeypatch):
    """A stopped clock for the watch."""

    class Clock:
        now = 0.0

    monkeypatch.setattr(time, "monotonic", lambda: Clock.now)
    return Clock


@pytest.fixture
def member(store):
    """Makes a host's membership in a cluster, without watching the other hosts."""

    def make(index, count=2, patience_secs=10.0):
        made = Membership(Cluster("10.0.0.1:8476", count, index), store)
        made.watch.patience_secs = patience_secs
        return made

    return make


@pytest.fixture
def hosts_of(member):
    """Makes the `Hosts` object of one host."""

    def make(index, count=2, patience_secs=10.0):
        own = member(index, count, patience_secs)
        return Hosts(index, count, patience_secs, own)

    return make
