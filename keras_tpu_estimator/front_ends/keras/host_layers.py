"""An error for Keras layers that only run on the host."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import keras

_CLASSES = (
    keras.layers.HashedCrossing,
    keras.layers.Hashing,
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)


@functools.cache
def refuse_tensors() -> None:
    """Makes these layers refuse traced tensors; installs the check once.

    They call TensorFlow, whose error does not name the layer.
    """
    for cls in _CLASSES:
        cls.__call__ = _refusing(cls.__call__)


def _refusing(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        leaves = jax.tree.leaves((args, kwargs))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            kind = type(self).__name__
            raise ValueError(
                f"The layer keras.layers.{kind} must be called in `input_fn`, "
                "because it runs in TensorFlow on the host. Received a call "
                f"of {self.name!r} in `model_fn`. Call the layer in "
                "`dataset.map`, and pass its result as a feature."
            )
        return call(self, *args, **kwargs)

    return __call__
