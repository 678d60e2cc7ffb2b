"""Python functions in Keras configs, kept as the objects that they are.

A config of Keras holds the name or the bytecode of a function, which lose its
globals and its closure. A copy in this process can have the function itself.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from keras_tpu_estimator.ground.tracing import keras_internals


class _Kept(threading.local):
    """The functions that this thread keeps by name, or `None`."""

    def __init__(self) -> None:
        self.by_name: dict[str, Any] | None = None


_KEPT = _Kept()


@contextlib.contextmanager
def kept() -> Iterator[dict[str, Any]]:
    """Has configs name Python functions in a `with` block, and keeps these.

    Yields:
        The functions by their names in configs.

    Example:

    >>> import keras
    >>> def double(x):
    ...     return 2 * x
    >>> layer = keras.layers.Dense(1, activation=double)
    >>> with kept() as functions:
    ...     name = layer.get_config()["activation"]["config"]
    >>> functions[name] is double
    True
    """
    keras_internals.name_functions(_name_of)
    before, _KEPT.by_name = _KEPT.by_name, {}
    try:
        yield _KEPT.by_name
    finally:
        _KEPT.by_name = before


def _name_of(value: Any) -> str | None:
    """The name of a function in a config; `None` if Keras has a better one."""
    if _KEPT.by_name is None or not _is_plain_function(value):
        return None
    name = f"kte>function-{id(value)}"
    # Nobody else gets its `id` as long as it is kept.
    _KEPT.by_name[name] = value
    return name


def _is_plain_function(value: Any) -> bool:
    """Whether something is called and has no config that makes it again."""
    if not callable(value) or isinstance(value, type) or hasattr(value, "get_config"):
        return False
    return not keras_internals.is_of_keras(value)
