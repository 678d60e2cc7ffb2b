"""What the code of one core may ask of the others while it is traced."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator

import jax

from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.ground.mesh.reductions import mean_over
from keras_tpu_estimator.ground.mesh.reductions import sum_over
from keras_tpu_estimator.ground.mesh.replica_groups import Groups


@dataclasses.dataclass(frozen=True)
class ReplicaContext:
    """What the code of one core knows while it is traced.

    Attributes:
        num_replicas: Cores that run this code together.
        axes: Names of the mesh axes they lie on; empty for one core.
        platform: What kind of devices they are. Defaults to "cpu".
    """

    num_replicas: int
    axes: tuple[str, ...]
    platform: str = "cpu"


_ONE_REPLICA = ReplicaContext(num_replicas=1, axes=())
_context: contextvars.ContextVar[ReplicaContext] = contextvars.ContextVar(
    "replica_context", default=_ONE_REPLICA
)


def replica_context() -> ReplicaContext:
    """The context of the core whose code is being traced on this thread."""
    return _context.get()


@contextlib.contextmanager
def replica_scope(context: ReplicaContext) -> Iterator[ReplicaContext]:
    """Makes `context` the current one for the time of a `with` block."""
    token = _context.set(context)
    try:
        yield context
    finally:
        _context.reset(token)


def cross_replica_sum(x: Nest, name: str | None = None) -> Nest:
    """Sums a tensor, or each tensor of a nest, over all cores.

    For use in a `model_fn`, as `tf.compat.v1.tpu.cross_replica_sum`. On one
    core it returns `x`.

    Args:
        x: Tensor of any shape, or a nest of them.
        name: Accepted for compatibility. Defaults to `None`.

    Returns:
        A nest like `x`, with the same values on every core.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> float(kte.cross_replica_sum(2.0))  # One core outside a model_fn.
    2.0
    """
    del name
    return sum_in_groups(x, None)


def cross_replica_mean(x: Nest, name: str | None = None) -> Nest:
    """Averages a tensor, or each tensor of a nest, over all cores.

    For use in a `model_fn`. On one core it returns `x`.

    Args:
        x: Tensor of any shape, or a nest of them.
        name: Accepted for compatibility. Defaults to `None`.

    Returns:
        A nest like `x`, with the same values on every core.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> float(kte.cross_replica_mean(2.0))  # One core outside a model_fn.
    2.0
    """
    del name
    return mean_in_groups(x, None)


def sum_in_groups(
    x: Nest,
    groups: Groups | None,
    dtype: jax.typing.DTypeLike | None = None,
) -> Nest:
    """Sums tensors over the cores of each group.

    Args:
        x: Nest of tensors of this core.
        groups: The groups; `None` for one of all cores.
        dtype: As in `sum_over`.
    """
    context = replica_context()
    if not context.axes:
        return x
    return sum_over(x, context.axes, groups, _held(dtype, context))


def mean_in_groups(
    x: Nest,
    groups: Groups | None,
    dtype: jax.typing.DTypeLike | None = None,
) -> Nest:
    """Averages tensors over the cores of each group.

    Args:
        x: Nest of tensors of this core.
        groups: The groups; `None` for one of all cores.
        dtype: As in `mean_over`.
    """
    context = replica_context()
    if not context.axes:
        return x
    return mean_over(x, context.axes, groups, _held(dtype, context))


def _held(
    dtype: jax.typing.DTypeLike | None, context: ReplicaContext
) -> jax.typing.DTypeLike | None:
    """The dtype, where it may be less than float32."""
    # XLA ends the process where it is to sum bfloat16 over some of the axes of
    # a mesh of CPUs.
    return None if context.platform == "cpu" else dtype
