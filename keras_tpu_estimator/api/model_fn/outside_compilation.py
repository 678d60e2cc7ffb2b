"""Post-processing of a model's outputs by TensorFlow on the host."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.tensorflow_session import hide_gpus
from keras_tpu_estimator.base.common.types import PyTree


class Call(Protocol):
    """A computation on the host."""

    def results(self, tensors: Sequence[Any]) -> list[Any]:
        """Returns the flat results for the tensors of a batch."""


@dataclasses.dataclass(frozen=True, eq=False)
class HostCall:
    """One call of `outside_compilation`, with a function of TensorFlow tensors."""

    function: Callable[..., Any]

    def results(self, tensors: Sequence[Any]) -> list[Any]:
        """Returns the flat results for these TensorFlow tensors."""
        import tensorflow as tf

        with tf.device("CPU:0"):
            results = self.function(*map(tf.convert_to_tensor, tensors))
        return tf.nest.flatten(results)


class HostTensor:
    """A tensor that the host computes from a model's outputs: a result of a call, by
    its `index`.

    To JAX it is a pytree of the tensors that it is computed from, the arguments of the
    call. Its dtype is `None` if it is no longer needed.
    """

    def __init__(
        self,
        call: Call,
        index: int,
        tensors: Sequence[Any],
        dtype: str | None = None,
    ):
        self.call = call
        self.index = index
        self.tensors = tuple(tensors)
        self.dtype = dtype


jax.tree_util.register_pytree_node(
    HostTensor,
    lambda tensor: (tensor.tensors, (tensor.call, tensor.index)),
    lambda aux, tensors: HostTensor(*aux, tensors),
)


def outside_compilation(fn: Callable[..., Any], *tensors: PyTree) -> PyTree:
    """Applies TensorFlow ops to a model's outputs, on the host.

    For values that JAX does not support, such as strings. In `predict`, `fn`
    runs after each batch. In a SavedModel its ops follow the compiled model.

    The counterpart of `tf.compat.v1.tpu.outside_compilation`, for outputs: the
    results go into a spec's `predictions` or `export_outputs`, not back into
    the model.

    Args:
        fn: Function of TensorFlow tensors. It creates its own constants and
            lookup tables, and accepts any size of the first dimension.
        *tensors: Tensors of the model, or earlier results.

    Returns:
        The result of `fn`, with a `HostTensor` for each tensor.

    Raises:
        TypeError: `fn` is not a function, or an argument is not a tensor.

    Example:

    >>> import tensorflow as tf
    >>> import keras_tpu_estimator as kte
    >>> import numpy as np
    >>> def names(ids):
    ...     return tf.gather(tf.constant(["cat", "dog"]), ids)
    >>> kte.outside_compilation(names, np.array([1, 0])).dtype
    'string'
    """
    import tensorflow as tf

    hide_gpus()
    if not callable(fn):
        raise TypeError(
            f"`fn` must be a function. Received: {shown(fn)}. Pass the function "
            "itself: outside_compilation(fn, *tensors)."
        )
    traced = tf.function(fn, autograph=False).get_concrete_function(
        *map(_spec, tensors)
    )
    results = tf.nest.flatten(traced.structured_outputs)
    call = HostCall(fn)
    return tf.nest.pack_sequence_as(
        traced.structured_outputs,
        [
            HostTensor(call, index, tensors, result.dtype.name)
            for index, result in enumerate(results)
        ],
    )


def with_host_tensors(tree: PyTree, finish: Callable[[Any], Any]) -> PyTree:
    """Replaces the host tensors in a pytree by results of `finish`, which is called
    with TensorFlow tensors.
    """
    results_by_call: dict[Call, list[Any]] = {}

    def computed(leaf: Any) -> Any:
        if not isinstance(leaf, HostTensor):
            return leaf
        if leaf.call not in results_by_call:
            results_by_call[leaf.call] = leaf.call.results(
                [computed(tensor) for tensor in leaf.tensors]
            )
        return results_by_call[leaf.call][leaf.index]

    return jax.tree.map(
        lambda leaf: finish(computed(leaf)) if is_host_tensor(leaf) else leaf,
        tree,
        is_leaf=is_host_tensor,
    )


def is_host_tensor(value: Any) -> bool:
    """Returns whether a value is a `HostTensor`."""
    return isinstance(value, HostTensor)


def _spec(tensor: Any) -> Any:
    """Returns the TensorFlow spec of a tensor without a value."""
    import tensorflow as tf

    if isinstance(tensor, HostTensor):
        return tf.TensorSpec(None, tensor.dtype)
    if not isinstance(tensor, jax.Array | np.ndarray):
        raise TypeError(
            "`tensors` must be tensors of the model. Received: "
            f"{shown(tensor)}. Bind other arguments with functools.partial."
        )
    shape = [d if isinstance(d, int) else None for d in tensor.shape]
    dtype = jax.dtypes.canonicalize_dtype(tensor.dtype)
    return tf.TensorSpec([None, *shape[1:]] if shape else [], dtype)
