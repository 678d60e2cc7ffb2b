"""The context in which a TF1 `model_fn` builds a graph that XLA can compile."""

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator
from typing import Any

from keras_tpu_estimator.tf1.graph import internals
from keras_tpu_estimator.tf1.graph.inner_ops import (
    check_returned,
    graph_class,
    without_inner,
)
from keras_tpu_estimator.tf1.shims.installing import give_back


class _AsInTF2:
    """Keeps global settings of TensorFlow while any thread needs them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._restored: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        import tensorflow as tf

        v1 = tf.compat.v1
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            if not v1.resource_variables_enabled():
                self._restored.append(v1.disable_resource_variables)
            if not v1.control_flow_v2_enabled():
                self._restored.append(v1.disable_control_flow_v2)
            v1.enable_resource_variables()
            v1.enable_control_flow_v2()

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._users -= 1
            while self._restored and not self._users:
                self._restored.pop()()


_as_in_tf2 = _AsInTF2()


def as_in_tf2() -> contextlib.AbstractContextManager[None]:
    """Enables resource variables and functional control flow, which XLA needs.

    `tf.disable_v2_behavior()`, which many scripts call, disables them.
    """
    return _as_in_tf2


_is_building: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "is_building", default=False
)

# The thread that reads the input and the caller's thread both build graphs, while
# parts of TensorFlow are replaced.
_lock = threading.RLock()


@contextlib.contextmanager
def building(seed: int | None, cores: int = 1) -> Iterator[Any]:
    """Makes a new graph in which a `TF1ModelFn` can be called."""
    import tensorflow as tf

    v1 = tf.compat.v1
    give_back()
    graph = graph_class()()
    token = _is_building.set(True)
    try:
        with (
            _lock,
            as_in_tf2(),
            graph.as_default(),
            internals.shards(cores),
            internals.whole_variables(),
            internals.python_of_old_variables(),
            internals.known_conditions(),
            internals.scopes_of(without_inner),
            internals.inputs_checked(check_returned),
        ):
            if seed is not None:
                v1.set_random_seed(seed)
            v1.train.create_global_step()
            yield graph
    finally:
        _is_building.reset(token)


@contextlib.contextmanager
def in_any_graph() -> Iterator[None]:
    """Allows a `TF1ModelFn` to build in the caller's own graph."""
    token = _is_building.set(True)
    try:
        yield
    finally:
        _is_building.reset(token)


def is_building() -> bool:
    """Returns whether the current code runs in one of these contexts."""
    return _is_building.get()
