"""Updates of variables that are executed after `model_fn`."""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras

from keras_tpu_estimator.api.model_fn.known_variables import get_global_step
from keras_tpu_estimator.api.model_fn.update import Reduction, Update
from keras_tpu_estimator.api.optimizers.optax_optimizer import Optax, as_keras
from keras_tpu_estimator.base.mesh import replica_context
from keras_tpu_estimator.base.mesh.replica_context import (
    Groups,
    ReduceDtype,
    ReplicaShards,
    combined_in,
)
from keras_tpu_estimator.base.tracing.variables import current_scope, scope_for
from keras_tpu_estimator.base.upstream import keras_models

Gradient = Any


@dataclasses.dataclass(frozen=True)
class TrainOp(Update):
    """An update of variables by an optimizer, executed after `model_fn`.

    `CrossShardOptimizer.minimize` and `apply_gradients` return it, for the
    `train_op` of a spec. It has no effect elsewhere.

    Attributes:
        optimizer: The Keras or optax optimizer of the update.
        variables: The updated variables.
        loss: Scalar tensor to differentiate, or `None` if the gradients are
            given.
        gradients: One for each variable, or `None` if they are computed from
            `loss`.
        reduction: The operation that combines gradients over replicas, "mean"
            or "sum", or `None` if they are equal on all, such as results of
            `cross_replica_mean`. Other gradients without a reduction are an
            error on several replicas.
        groups: Lists of replica numbers, each of which combines its own
            gradients; `None` for one group of all.
        reduce_dtype: The dtype in which gradients are combined, "float32" or
            "bfloat16"; `None` for `RunConfig.reduce_dtype`, which defaults to
            that of each gradient.

    Raises:
        ValueError: The optimizer expects a scaled loss.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> def train_op(loss):
    ...     variables = kte.trainable_variables()
    ...     gradients = kte.cross_replica_mean(kte.gradients(loss, variables))
    ...     optimizer = keras.optimizers.SGD(0.1)
    ...     return kte.TrainOp(optimizer, variables, gradients=gradients)
    """

    optimizer: keras.optimizers.Optimizer
    variables: tuple[keras.Variable, ...]
    loss: Any = None
    gradients: tuple[Gradient, ...] | None = None
    reduction: Reduction | None = None
    groups: Groups | None = None
    reduce_dtype: ReduceDtype | None = None
    _scalars: tuple[Any, ...] = dataclasses.field(init=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "optimizer", as_keras(self.optimizer))
        object.__setattr__(self, "reduce_dtype", combined_in(self.reduce_dtype))
        check_unscaled(self.optimizer)
        scope = current_scope()
        if scope is not None:
            firsts = tuple(map(scope.first, self.variables))
            object.__setattr__(self, "variables", firsts)
            rates = computed_rates(single_optimizers(self.optimizer), get_global_step())
            scalars = (
                (*rates, keras.ops.cast(self.loss, "float32"))
                if self._by_loss
                else rates
            )
            object.__setattr__(self, "_scalars", scalars)

    @property
    def carried(self) -> tuple[Gradient, ...]:
        """The given gradients."""
        return self.gradients or ()

    @property
    def scalars(self) -> tuple[Any, ...]:
        """Learning rates that `model_fn` computed, and the loss if it is
        needed.
        """
        return self._scalars

    @contextlib.contextmanager
    def at(self, scalars: Sequence[Any]) -> Iterator[None]:
        """Sets the optimizer's rates and loss in a `with` block."""
        with contextlib.ExitStack() as stack:
            rates = list(scalars)
            if self._by_loss:
                loss = rates.pop()
                for optimizer in self._by_loss:
                    stack.enter_context(optimizer.at_loss(loss))
            singles = single_optimizers(self.optimizer)
            stack.enter_context(at_rates(singles, rates))
            yield

    @property
    def _by_loss(self) -> list[Optax]:
        """The optimizers that use the loss, if it is given."""
        return [
            optimizer
            for optimizer in single_optimizers(self.optimizer)
            if isinstance(optimizer, Optax)
            and optimizer.takes_loss
            and self.loss is not None
        ]

    def reduced(
        self, tensors: Sequence[Gradient], shards: Mapping[str, Any]
    ) -> tuple[Gradient, ...]:
        """Combines gradients over the replicas.

        Returns:
            Gradients; of sharded variables, the shards of this replica.
        """
        return tuple(
            self._reduced_shard(gradient, variable, shards[variable.path])
            if variable.path in shards
            else self._reduced(gradient)
            for gradient, variable in zip(tensors, self.variables, strict=True)
        )

    def _reduced(self, gradient: Gradient) -> Gradient:
        reduce: dict[Reduction | None, Callable[..., Any]] = {
            "mean": replica_context.mean_in_groups,
            "sum": replica_context.sum_in_groups,
            None: lambda gradient, groups, dtype: gradient,
        }
        return reduce[self.reduction](gradient, self.groups, self._added_in(gradient))

    def _reduced_shard(
        self, gradient: Gradient, variable: keras.Variable, shards: ReplicaShards
    ) -> Gradient:
        """Returns a shard of a gradient, which is this replica's if it is by the
        variable, and a sum over the replicas if by the shard.
        """
        if gradient.shape == variable.shape:
            if self.reduction is None:
                return shards.own_shard(gradient)
            gradient = shards.summed(gradient)
        if self.reduction == "mean":
            return gradient / replica_context.replica_context().num_replicas
        return gradient

    def _added_in(self, gradient: Gradient) -> str | None:
        """Returns the dtype in which gradients of all replicas are added."""
        if self.reduce_dtype is not None:
            return self.reduce_dtype
        # The sum may overflow float16.
        return None if gradient.dtype == "float16" else gradient.dtype

    def apply(self, tensors: Sequence[Gradient]) -> Mapping[str, Any]:
        """Updates the variables with the gradients of all replicas."""
        singles = single_optimizers(self.optimizer)
        # Optimizers may have been built for an earlier trace's loss or for
        # another loss.
        for optimizer in {self.optimizer, *singles}:
            optimizer.built = False
        by_optax = [optimizer for optimizer in singles if isinstance(optimizer, Optax)]
        # Keras schedules use a count, which the update increments. Optax
        # schedules are evaluated in the update.
        rates = _rates(optimizer for optimizer in singles if optimizer not in by_optax)
        with scope_for("TrainOp.apply").numbering():
            self.optimizer.apply(list(tensors), self.variables)
        return {**rates, **_rates(by_optax)}


def _rates(optimizers: Iterable[keras.optimizers.Optimizer]) -> dict[str, Any]:
    """Returns the known learning rates by optimizer name."""
    rates = {optimizer.name: optimizer.learning_rate for optimizer in optimizers}
    return {
        name: keras.ops.cast(rate, "float32")
        for name, rate in rates.items()
        if rate is not None
    }


def check_unscaled(optimizer: keras.optimizers.Optimizer | None) -> None:
    """Checks that an optimizer does not expect a scaled loss."""
    if (
        isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        or getattr(optimizer, "loss_scale_factor", None) is not None
    ):
        raise ValueError(
            "Loss scaling is not supported. Received a LossScaleOptimizer, "
            "which Keras makes for 'mixed_float16', or an optimizer with a "
            f"`loss_scale_factor`: {optimizer!r}. Use the dtype policy "
            "'mixed_bfloat16', which needs none."
        )


def single_optimizers(
    optimizer: keras.optimizers.Optimizer,
) -> list[keras.optimizers.Optimizer]:
    """Returns the optimizers that have a learning rate."""
    if isinstance(optimizer, keras.optimizers.MultiOptimizer):
        return list(optimizer.optimizers)
    return [optimizer]


def computed_rates(
    optimizers: Sequence[keras.optimizers.Optimizer], global_step: Any
) -> tuple[Any, ...]:
    """Returns the scalar float32 learning rates that functions or tensors of a
    `model_fn` set; skips optimizers with a number or a Keras schedule.
    """
    return tuple(
        _scalar(_call(function, global_step), optimizer)
        for optimizer, function in _computed(optimizers)
    )


@contextlib.contextmanager
def at_rates(
    optimizers: Sequence[keras.optimizers.Optimizer], rates: Sequence[Any]
) -> Iterator[None]:
    """Sets the learning rates of optimizers in a `with` block."""
    with contextlib.ExitStack() as stack:
        for (optimizer, _), rate in zip(_computed(optimizers), rates, strict=True):
            stack.enter_context(keras_models.at_rate(optimizer, rate))
        yield


def _computed(
    optimizers: Sequence[keras.optimizers.Optimizer],
) -> list[tuple[keras.optimizers.Optimizer, Callable[..., Any]]]:
    return [
        (optimizer, function)
        for optimizer in optimizers
        if (function := keras_models.rate_function(optimizer)) is not None
    ]


def _call(function: Callable[..., Any], global_step: Any) -> Any:
    inner = inspect.unwrap(getattr(function, "func", function))
    if str(inner.__module__).partition(".")[0] == "tensorflow":
        raise TypeError(
            "The learning rate of a Keras optimizer must be a number, a "
            "tensor, a function of JAX or a schedule of Keras. Received one "
            "of tf.train's decays: use its counterpart in "
            "keras.optimizers.schedules; see docs/migrating.md#6-optimizer."
        )
    parameters = inspect.signature(function).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [
        p for p in parameters if p.default is p.empty and p.kind not in variadic
    ]
    if len(required) > 1:
        raise TypeError(
            "The function of a learning rate must have no argument, or the "
            "global step as its only one. Received arguments "
            f"{[p.name for p in required]}."
        )
    return function(global_step) if required else function()


def _scalar(rate: Any, optimizer: keras.optimizers.Optimizer) -> Any:
    rate = keras.ops.convert_to_tensor(rate)
    if rate.ndim:
        raise ValueError(
            f"The learning rate of {optimizer.name!r} must be a scalar. "
            f"Received a tensor of shape {rate.shape}."
        )
    return keras.ops.cast(rate, "float32")
