"""What is to be done to variables, after `model_fn` has returned."""

import abc
import contextlib
import dataclasses
import inspect
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from typing import Literal

import keras

from keras_tpu_estimator.ground.mesh import replica_context
from keras_tpu_estimator.ground.mesh.replica_groups import Groups
from keras_tpu_estimator.ground.tracing import keras_internals
from keras_tpu_estimator.ground.tracing.variables import current_scope
from keras_tpu_estimator.ground.tracing.variables import scope_for
from keras_tpu_estimator.spec.model_fn.known_variables import get_global_step
from keras_tpu_estimator.spec.optimizers.optax_optimizer import Optax
from keras_tpu_estimator.spec.optimizers.optax_optimizer import as_keras

Gradient = Any
Reduction = Literal["mean", "sum"]
ReduceDtype = Literal["bfloat16", "float32"]


class Update(abc.ABC):
    """Something to do to variables, after `model_fn` has returned.

    Attributes:
        variables: What it is about.
        loss: Scalar tensor to differentiate, or `None`.
        reduction: How `reduced` combines what it is given over cores, or
            `None` if it has to be equal on all.
    """

    variables: tuple[keras.Variable, ...]
    loss: Any = None
    reduction: Reduction | None = None

    @property
    def carried(self) -> tuple[Any, ...]:
        """Tensors of `model_fn` that `apply` is given, without a loss."""
        return ()

    @property
    def scalars(self) -> tuple[Any, ...]:
        """What else `apply` needs of `model_fn`, averaged over the cores."""
        return ()

    def at(self, scalars: Sequence[Any]) -> AbstractContextManager[None]:
        """Has `apply` use these scalars in a `with` block."""
        del scalars
        return contextlib.nullcontext()

    def reduced(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Combines tensors over the cores.

        Args:
            tensors: The gradients of the loss, or what is carried.
        """
        return tuple(tensors)

    @abc.abstractmethod
    def apply(self, tensors: Sequence[Any]) -> Mapping[str, Any]:
        """Updates the variables.

        Args:
            tensors: What `reduced` has returned.

        Returns:
            The learning rates that it used and knows, by optimizers' names.
        """


@dataclasses.dataclass(frozen=True)
class TrainOp(Update):
    """One update of variables by an optimizer, yet to be carried out.

    Made by `CrossShardOptimizer.minimize` and `apply_gradients`, and given to
    a spec as its `train_op`. It takes effect only there.

    Attributes:
        optimizer: The optimizer of Keras, or of optax, that makes the update.
        variables: What it updates.
        loss: Scalar tensor to differentiate, or `None` if the gradients are
            given.
        gradients: One for each variable, or `None` if they follow from `loss`.
        reduction: How gradients are combined over cores, "mean" or "sum", or
            `None` if they are equal on all, as what `cross_replica_mean`
            returns. Other gradients without a reduction are an error on
            several cores.
        groups: Lists of replica numbers, each of which combines gradients
            among its own; `None` for one group of all.
        reduce_dtype: The dtype that gradients are combined in, "float32" or
            "bfloat16"; `None` for that of each gradient.

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
        check_unscaled(self.optimizer)
        scope = current_scope()
        if scope is not None:
            firsts = tuple(map(scope.first, self.variables))
            object.__setattr__(self, "variables", firsts)
            rates = computed_rates(
                single_optimizers(self.optimizer), get_global_step()
            )
            scalars = (
                (*rates, keras.ops.cast(self.loss, "float32"))
                if self._by_loss
                else rates
            )
            object.__setattr__(self, "_scalars", scalars)

    @property
    def carried(self) -> tuple[Gradient, ...]:
        """The gradients that are given."""
        return self.gradients or ()

    @property
    def scalars(self) -> tuple[Any, ...]:
        """Learning rates that `model_fn` has computed, and perhaps the loss."""
        return self._scalars

    @contextlib.contextmanager
    def at(self, scalars: Sequence[Any]) -> Iterator[None]:
        """Has the optimizer use these rates and this loss in a `with` block."""
        with contextlib.ExitStack() as stack:
            rates = list(scalars)
            if self._by_loss:
                loss = rates.pop()
                for each in self._by_loss:
                    stack.enter_context(each.at_loss(loss))
            singles = single_optimizers(self.optimizer)
            stack.enter_context(at_rates(singles, rates))
            yield

    @property
    def _by_loss(self) -> list[Optax]:
        """The optimizers that take the loss, where there is one."""
        return [
            each
            for each in single_optimizers(self.optimizer)
            if isinstance(each, Optax)
            and each.takes_loss
            and self.loss is not None
        ]

    def reduced(self, tensors: Sequence[Gradient]) -> tuple[Gradient, ...]:
        """Combines gradients over the cores."""
        reduce: dict[Reduction | None, Callable[..., Any]] = {
            "mean": replica_context.mean_in_groups,
            "sum": replica_context.sum_in_groups,
            None: lambda gradient, groups, dtype: gradient,
        }
        return tuple(
            reduce[self.reduction](
                gradient, self.groups, self._added_in(gradient)
            )
            for gradient in tensors
        )

    def _added_in(self, gradient: Gradient) -> str | None:
        """The dtype that gradients of all cores are added in."""
        if self.reduce_dtype is not None:
            return self.reduce_dtype
        # float16 may not hold their sum.
        return None if gradient.dtype == "float16" else gradient.dtype

    def apply(self, tensors: Sequence[Gradient]) -> Mapping[str, Any]:
        """Updates the variables by gradients of all cores."""
        singles = single_optimizers(self.optimizer)
        # They may have been built for an earlier trace's or another loss's.
        for each in {self.optimizer, *singles}:
            each.built = False
        by_optax = [each for each in singles if isinstance(each, Optax)]
        # Schedules of Keras go by a count, to which the update adds one. Those
        # of optax are worked out in the update.
        rates = _rates(each for each in singles if each not in by_optax)
        with scope_for("TrainOp.apply").numbering():
            self.optimizer.apply(list(tensors), self.variables)
        return {**rates, **_rates(by_optax)}


def _rates(optimizers: Iterable[keras.optimizers.Optimizer]) -> dict[str, Any]:
    """Learning rates by the names of optimizers, of those that know them."""
    rates = {each.name: each.learning_rate for each in optimizers}
    return {
        name: keras.ops.cast(rate, "float32")
        for name, rate in rates.items()
        if rate is not None
    }


def check_unscaled(optimizer: keras.optimizers.Optimizer | None) -> None:
    """Checks that an optimizer does not expect a scaled loss.

    Args:
        optimizer: It would divide gradients by what nobody has multiplied the
            loss with.

    Raises:
        ValueError: It does.

    Example:

    >>> check_unscaled(keras.optimizers.SGD(0.1))
    """
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
    """The optimizers that have a learning rate.

    Args:
        optimizer: One with its own, or a `keras.optimizers.MultiOptimizer`.

    Example:

    >>> sgd = keras.optimizers.SGD(name="sgd")
    >>> [each.name for each in single_optimizers(sgd)]
    ['sgd']
    """
    if isinstance(optimizer, keras.optimizers.MultiOptimizer):
        return list(optimizer.optimizers)
    return [optimizer]


def computed_rates(
    optimizers: Sequence[keras.optimizers.Optimizer], global_step: Any
) -> tuple[Any, ...]:
    """The learning rates that functions or tensors of a `model_fn` say.

    Args:
        optimizers: Those that have a learning rate. Those that have a number
            or a schedule of Keras are left out.
        global_step: What functions of one argument are given.

    Returns:
        Scalar float32 tensors.

    Raises:
        TypeError: One is a function of TensorFlow, or of several arguments.
        ValueError: One is not a scalar.
    """
    return tuple(
        _scalar(_call(function, global_step), each)
        for each, function in _computed(optimizers)
    )


@contextlib.contextmanager
def at_rates(
    optimizers: Sequence[keras.optimizers.Optimizer], rates: Sequence[Any]
) -> Iterator[None]:
    """Gives optimizers learning rates in a `with` block.

    Args:
        optimizers: As for `computed_rates`.
        rates: What that has returned.
    """
    with contextlib.ExitStack() as stack:
        for (each, _), rate in zip(_computed(optimizers), rates, strict=True):
            stack.enter_context(keras_internals.at_rate(each, rate))
        yield


def _computed(
    optimizers: Sequence[keras.optimizers.Optimizer],
) -> list[tuple[keras.optimizers.Optimizer, Callable[..., Any]]]:
    return [
        (each, function)
        for each in optimizers
        if (function := keras_internals.rate_function(each)) is not None
    ]


def _call(function: Callable[..., Any], global_step: Any) -> Any:
    inner = inspect.unwrap(getattr(function, "func", function))
    if str(inner.__module__).partition(".")[0] == "tensorflow":
        raise TypeError(
            "The learning rate of a Keras optimizer should be a number, a "
            "tensor, a function of JAX or a schedule of Keras. Received one of "
            "tf.train's decays: take its counterpart in "
            "keras.optimizers.schedules; see docs/migrating.md#6-optimizer."
        )
    parameters = inspect.signature(function).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [
        p for p in parameters if p.default is p.empty and p.kind not in variadic
    ]
    if len(required) > 1:
        raise TypeError(
            "The function of a learning rate should take no argument, or the "
            f"global step. Received one of {[p.name for p in required]}."
        )
    return function(global_step) if required else function()


def _scalar(rate: Any, optimizer: keras.optimizers.Optimizer) -> Any:
    rate = keras.ops.convert_to_tensor(rate)
    if rate.ndim:
        raise ValueError(
            f"The learning rate of {optimizer.name!r} should be a scalar. "
            f"Received a tensor of shape {rate.shape}."
        )
    return keras.ops.cast(rate, "float32")
