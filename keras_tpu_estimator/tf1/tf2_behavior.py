"""Global settings of TensorFlow for graphs that XLA compiles."""

import contextlib
import threading
from collections.abc import Callable


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
