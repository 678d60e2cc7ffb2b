"""The context of one core's code during tracing, and its reductions."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator

import jax

from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.mesh.reductions import Groups, mean_over, sum_over


@dataclasses.dataclass(frozen=True)
class ReplicaContext:
    """The context of one core's code during tracing.

    Attributes:
        num_replicas: The number of replicas that run this code.
        axes: The names of their mesh axes; empty for one replica.
        platform: The kind of the devices. Defaults to "cpu".
    """

    num_replicas: int
    axes: tuple[str, ...]
    platform: str = "cpu"


_ONE_REPLICA = ReplicaContext(num_replicas=1, axes=())
_context: contextvars.ContextVar[ReplicaContext] = contextvars.ContextVar(
    "replica_context", default=_ONE_REPLICA
)


def replica_context() -> ReplicaContext:
    """Returns the context of the code that this thread traces."""
    return _context.get()


@contextlib.contextmanager
def replica_scope(context: ReplicaContext) -> Iterator[ReplicaContext]:
    """Makes `context` the current one in a `with` block."""
    token = _context.set(context)
    try:
        yield context
    finally:
        _context.reset(token)


def cross_replica_sum(x: PyTree, name: str | None = None) -> PyTree:
    """Sums a tensor, or each tensor of a pytree, over all cores.

    For use in a `model_fn`, as `tf.compat.v1.tpu.cross_replica_sum`. On one
    core it returns `x`.

    Args:
        x: A tensor of any shape, or a pytree of tensors.
        name: Accepted for compatibility. Defaults to `None`.

    Returns:
        A pytree like `x`, with the same values on every core.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> float(kte.cross_replica_sum(2.0))  # One core outside a model_fn.
    2.0
    """
    del name
    return sum_in_groups(x, None)


def cross_replica_mean(x: PyTree, name: str | None = None) -> PyTree:
    """Averages a tensor, or each tensor of a pytree, over all cores.

    For use in a `model_fn`. On one core it returns `x`.

    Args:
        x: A tensor of any shape, or a pytree of tensors.
        name: Accepted for compatibility. Defaults to `None`.

    Returns:
        A pytree like `x`, with the same values on every core.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> float(kte.cross_replica_mean(2.0))  # One core outside a model_fn.
    2.0
    """
    del name
    return mean_in_groups(x, None)


def sum_in_groups(
    x: PyTree,
    groups: Groups | None,
    dtype: jax.typing.DTypeLike | None = None,
) -> PyTree:
    """Sums tensors over the cores of each group.

    Args:
        x: A pytree of this core's tensors.
        groups: The groups; `None` for one group of all cores.
        dtype: As in `sum_over`.
    """
    context = replica_context()
    if not context.axes:
        return x
    return sum_over(x, context.axes, groups, held(dtype, context.platform))


def mean_in_groups(
    x: PyTree,
    groups: Groups | None,
    dtype: jax.typing.DTypeLike | None = None,
) -> PyTree:
    """Averages tensors over the cores of each group.

    Args:
        x: A pytree of this core's tensors.
        groups: The groups; `None` for one group of all cores.
        dtype: As in `mean_over`.
    """
    context = replica_context()
    if not context.axes:
        return x
    return mean_over(x, context.axes, groups, held(dtype, context.platform))


def held(
    dtype: jax.typing.DTypeLike | None, platform: str
) -> jax.typing.DTypeLike | None:
    """Returns the dtype of a sum, if the platform can sum in it."""
    # On CPUs, XLA aborts when it sums bfloat16 over some axes of a mesh. A sum
    # may overflow float16.
    is_held = platform != "cpu" and dtype != "float16"
    return dtype if is_held else None
