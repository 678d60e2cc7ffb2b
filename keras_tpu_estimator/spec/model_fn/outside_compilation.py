"""Work on a model's outputs that TensorFlow does on the host."""

import dataclasses
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.ground.base.shown import shown
from keras_tpu_estimator.ground.base.tensorflow_gpus import hide_gpus
from keras_tpu_estimator.ground.base.types import Nest


@dataclasses.dataclass(frozen=True, eq=False)
class HostCall:
    """One call of `outside_compilation`.

    Attributes:
        function: The user's function, of TensorFlow's tensors.
    """

    function: Callable[..., Any]

    def results(self, tensors: Sequence[Any]) -> list[Any]:
        """The flat results for these tensors, as TensorFlow's tensors."""
        import tensorflow as tf

        with tf.device("CPU:0"):
            results = self.function(*map(tf.convert_to_tensor, tensors))
        return tf.nest.flatten(results)


class HostTensor:
    """A tensor that the host computes once a model's own outputs are there.

    To JAX it is a nest of what it is computed from.

    Args:
        call: The call whose result it is.
        index: Which of the call's results.
        tensors: What the call is given.
        dtype: Name of the dtype, such as 'string'. Defaults to `None`, where
            it does not matter any more.
    """

    def __init__(
        self,
        call: HostCall,
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


def outside_compilation(fn: Callable[..., Any], *tensors: Nest) -> Nest:
    """Has TensorFlow's ops work on a model's outputs, on the host.

    For what JAX cannot hold or compute, such as strings. In `predict`, `fn`
    runs after each batch. In a SavedModel its ops follow the compiled model.

    The counterpart of `tf.compat.v1.tpu.outside_compilation`, for outputs: the
    results go into a spec's `predictions` or `export_outputs`, not back into
    the model.

    Args:
        fn: Function of TensorFlow's tensors. It makes its constants and tables
            itself, and treats the first dimension as open.
        *tensors: Tensors of the model, or earlier results.

    Returns:
        What `fn` returns, with a `HostTensor` for each tensor.

    Raises:
        TypeError: `fn` is no function, or an argument is no tensor.

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
            "Expected a function and its tensors. Received: "
            f"{shown(fn)}. Pass the function itself: "
            "outside_compilation(fn, *tensors)."
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


def with_host_tensors(nest: Nest, finish: Callable[[Any], Any]) -> Nest:
    """Computes the tensors of a nest that are the host's.

    Args:
        nest: Nest of tensors, some of which may be `HostTensor`s.
        finish: Called with each of their results, a tensor of TensorFlow.

    Returns:
        The nest with results in their places.
    """
    done: dict[HostCall, list[Any]] = {}

    def computed(leaf: Any) -> Any:
        if not isinstance(leaf, HostTensor):
            return leaf
        if leaf.call not in done:
            done[leaf.call] = leaf.call.results(
                [computed(tensor) for tensor in leaf.tensors]
            )
        return done[leaf.call][leaf.index]

    return jax.tree.map(
        lambda leaf: finish(computed(leaf)) if is_host_tensor(leaf) else leaf,
        nest,
        is_leaf=is_host_tensor,
    )


def is_host_tensor(value: Any) -> bool:
    """Whether a value is a `HostTensor`."""
    return isinstance(value, HostTensor)


def _spec(tensor: Any) -> Any:
    """What TensorFlow knows of a tensor before it is there."""
    import tensorflow as tf

    if isinstance(tensor, HostTensor):
        return tf.TensorSpec(None, tensor.dtype)
    if not isinstance(tensor, jax.Array | np.ndarray):
        raise TypeError(
            "Expected tensors of the model. Received: "
            f"{shown(tensor)}. Bind other arguments "
            "with functools.partial."
        )
    shape = [d if isinstance(d, int) else None for d in tensor.shape]
    dtype = jax.dtypes.canonicalize_dtype(tensor.dtype)
    return tf.TensorSpec([None, *shape[1:]] if shape else [], dtype)
