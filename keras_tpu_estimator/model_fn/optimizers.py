"""How a `model_fn` says what to minimise and how.

`minimize` and `apply_gradients` return records that the program carries out
after `model_fn` has returned, in one forward and backward pass.
"""

import abc
import contextlib
import dataclasses
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from typing import Literal

import keras

from keras_tpu_estimator.base.shown import shown
from keras_tpu_estimator.mesh import replica_context
from keras_tpu_estimator.mesh.replica_groups import Groups
from keras_tpu_estimator.mesh.replica_groups import check_groups
from keras_tpu_estimator.mesh.replica_groups import check_partition
from keras_tpu_estimator.model_fn import slots
from keras_tpu_estimator.model_fn.initialization import program_variables
from keras_tpu_estimator.model_fn.learning_rates import at_rates
from keras_tpu_estimator.model_fn.learning_rates import computed_rates
from keras_tpu_estimator.tracing.gradient_requests import gradients
from keras_tpu_estimator.tracing.gradient_requests import scalar
from keras_tpu_estimator.tracing.variables import current_scope
from keras_tpu_estimator.tracing.variables import scope_for

Gradient = Any
GradientAndVariable = tuple[Gradient | None, keras.Variable]
Reduction = Literal["mean", "sum"]


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
    def rates(self) -> tuple[Any, ...]:
        """Learning rates that `model_fn` has computed, as scalar tensors."""
        return ()

    def at(self, rates: Sequence[Any]) -> AbstractContextManager[None]:
        """Has `apply` use these rates in a `with` block."""
        del rates
        return contextlib.nullcontext()

    def reduced(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Combines tensors over the cores.

        Args:
            tensors: The gradients of the loss, or what is carried.
        """
        return tuple(tensors)

    @abc.abstractmethod
    def apply(self, tensors: Sequence[Any]) -> None:
        """Updates the variables.

        Args:
            tensors: What `reduced` has returned.
        """


@dataclasses.dataclass(frozen=True)
class TrainOp(Update):
    """One update of variables by an optimizer, yet to be carried out.

    Made by `CrossShardOptimizer.minimize` and `apply_gradients`, and given to
    a spec as its `train_op`. It takes effect only there.

    Attributes:
        optimizer: The Keras optimizer that makes the update.
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
    _rates: tuple[Any, ...] = dataclasses.field(init=False, default=())

    def __post_init__(self) -> None:
        check_unscaled(self.optimizer)
        scope = current_scope()
        if scope is not None:
            firsts = tuple(map(scope.first, self.variables))
            object.__setattr__(self, "variables", firsts)
            rates = computed_rates(
                single_optimizers(self.optimizer), get_global_step()
            )
            object.__setattr__(self, "_rates", rates)

    @property
    def carried(self) -> tuple[Gradient, ...]:
        """The gradients that are given."""
        return self.gradients or ()

    @property
    def rates(self) -> tuple[Any, ...]:
        """Learning rates that `model_fn` has computed, as scalar tensors."""
        return self._rates

    def at(self, rates: Sequence[Any]) -> AbstractContextManager[None]:
        """Has the optimizer use these rates in a `with` block."""
        return at_rates(single_optimizers(self.optimizer), rates)

    def reduced(self, tensors: Sequence[Gradient]) -> tuple[Gradient, ...]:
        """Combines gradients over the cores."""
        reduce: dict[Reduction | None, Callable[[Any, Any], Any]] = {
            "mean": replica_context.mean_in_groups,
            "sum": replica_context.sum_in_groups,
            None: lambda gradients, groups: gradients,
        }
        combined: tuple[Gradient, ...]
        combined = reduce[self.reduction](tuple(tensors), self.groups)
        return combined

    def apply(self, tensors: Sequence[Gradient]) -> None:
        """Updates the variables by gradients of all cores."""
        # They may have been built for an earlier trace's or another loss's.
        for each in {self.optimizer, *single_optimizers(self.optimizer)}:
            each.built = False
        with scope_for("TrainOp.apply").numbering():
            self.optimizer.apply(list(tensors), self.variables)


class CrossShardOptimizer:
    """Averages (or sums) gradients over all cores, then optimizes.

    The counterpart of `tf.compat.v1.tpu.CrossShardOptimizer` for Keras
    optimizers. On one core it is the optimizer itself.

    Args:
        opt: A `keras.optimizers.Optimizer`, with any schedule.
        reduction: `"mean"` (the default) or `"sum"` over the cores.
        name: Accepted for compatibility. Defaults to "CrossShardOptimizer".
        group_assignment: Lists of replica numbers. Each group combines its
            gradients alone, and so trains a model of its own; the first core's
            is what is saved, evaluated and shown. Defaults to `None`, for one
            group of all replicas.

    Raises:
        ValueError: `reduction` is none of the two, or `group_assignment` is
            malformed.
        TypeError: `opt` is no Keras optimizer.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import keras
    >>> optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
    >>> optimizer.reduction
    'mean'
    """

    def __init__(
        self,
        opt: keras.optimizers.Optimizer,
        reduction: str = "mean",
        name: str = "CrossShardOptimizer",
        group_assignment: Groups | None = None,
    ):
        if not isinstance(opt, keras.optimizers.Optimizer):
            raise TypeError(
                "`opt` should be a keras.optimizers.Optimizer. Received: "
                f"{shown(opt)}. Replace an optimizer "
                "of tf.train by the one of keras.optimizers with that name."
            )
        # The original's constants of tf.losses.Reduction, too.
        chosen = str(reduction).lower().removeprefix("weighted_")
        if chosen not in ("mean", "sum"):
            raise ValueError(
                "`reduction` should be 'mean' or 'sum'. Received: "
                f"reduction={reduction!r}"
            )
        if group_assignment is not None:
            check_groups(group_assignment)
        self.optimizer = opt
        self.reduction: Reduction = "mean" if chosen == "mean" else "sum"
        self.name = name
        self._groups = group_assignment

    def minimize(
        self,
        loss: Any,
        global_step: Any = None,
        var_list: Sequence[keras.Variable] | None = None,
        name: str | None = None,
    ) -> TrainOp:
        """A train op that minimises `loss`.

        Args:
            loss: Scalar tensor.
            global_step: Accepted for compatibility; the program counts its
                steps itself, one for each batch. Defaults to `None`.
            var_list: Variables to update. Defaults to all trainable ones.
            name: Accepted for compatibility. Defaults to `None`.

        Returns:
            A `TrainOp`.

        Raises:
            ValueError: It is called outside a `model_fn`, there are no
                variables, `loss` is not a scalar, or `group_assignment` is of
                other replicas.
        """
        del global_step, name
        return TrainOp(
            self.optimizer,
            _variables("minimize", var_list),
            loss=scalar(loss),
            reduction=self.reduction,
            groups=self._several_groups(),
        )

    def compute_gradients(
        self,
        loss: Any,
        var_list: Sequence[keras.Variable] | None = None,
    ) -> list[GradientAndVariable]:
        """This core's share of the gradients of `loss`.

        As in the original, with reduction "mean" the loss is divided by the
        number of cores (of a group) first, so that `apply_gradients` only has
        to sum.

        Args:
            loss: Scalar tensor.
            var_list: Variables to differentiate by. Defaults to all trainable
                ones.

        Returns:
            A list of (gradient, variable) pairs.

        Raises:
            ValueError: As `minimize`.
        """
        variables = _variables("compute_gradients", var_list)
        if self.reduction == "mean":
            loss = loss / self._reduced_together()
        shares = gradients(loss, variables, self.reduction)
        return list(zip(shares, variables, strict=True))

    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: Any = None,
        name: str | None = None,
    ) -> TrainOp:
        """A train op that sums gradients over the cores and applies them.

        Args:
            grads_and_vars: Pairs as `compute_gradients` returns them. Pairs
                without a gradient are left out.
            global_step: Accepted for compatibility. Defaults to `None`.
            name: Accepted for compatibility. Defaults to `None`.

        Returns:
            A `TrainOp`.

        Raises:
            ValueError: No pair has a gradient, or `group_assignment` is of
                other replicas.
        """
        del global_step, name
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        if not pairs:
            raise ValueError(
                "`grads_and_vars` should have at least one gradient. Received "
                "none: check that the loss depends on the variables."
            )
        grads, variables = zip(*pairs, strict=True)
        return TrainOp(
            self.optimizer,
            variables,
            gradients=grads,
            reduction="sum",
            groups=self._several_groups(),
        )

    def variables(self) -> list[keras.Variable]:
        """The variables of the inner optimizer made so far."""
        return list(self.optimizer.variables)

    def get_slot(self, var: keras.Variable, name: str) -> keras.Variable | None:
        """What the optimizer keeps for a variable, such as its momentum.

        Slots are made with the first step, after `model_fn` has returned. A
        slot's `path` is what hooks and `get_variable_value` take.

        Args:
            var: A variable that it updates.
            name: Keras's name, such as "momentum" or "velocity", or that of
                the optimizers of `tf.compat.v1.train`, such as "m" or "v".

        Returns:
            The slot variable, or `None` if there is none, or not yet.

        Raises:
            TypeError: `var` is no variable.
        """
        return slots.slot(single_optimizers(self.optimizer), var, name)

    def get_slot_names(self) -> list[str]:
        """Keras's names of what the optimizer keeps for each variable.

        Returns:
            A sorted list, which is empty before the first step.
        """
        return slots.slot_names(single_optimizers(self.optimizer))

    def _several_groups(self) -> Groups | None:
        """The checked groups, unless they are one of all replicas."""
        replicas = replica_context.replica_context().num_replicas
        check_partition(self._groups, replicas)
        is_one = self._groups is None or len(self._groups) == 1
        return None if is_one else self._groups

    def _reduced_together(self) -> int:
        """How many replicas combine their gradients."""
        replicas = replica_context.replica_context().num_replicas
        groups = self._several_groups()
        return len(groups[0]) if groups and replicas > 1 else replicas


def trainable_variables() -> list[keras.Variable]:
    """The trainable variables that `model_fn` has made or used so far.

    For use in a `model_fn` or a `scaffold_fn`; the counterpart of
    `tf.compat.v1.trainable_variables`.

    Returns:
        A list of `keras.Variable`, in the order of creation.

    Raises:
        ValueError: It is called elsewhere.
    """
    made = program_variables()
    if current_scope() is None and made:
        return [variable for variable in made.values() if variable.trainable]
    return scope_for("trainable_variables").trainable()


def get_global_step() -> Any:
    """The number of training steps made so far, as a tensor.

    For use in a `model_fn`, in any mode; the counterpart of
    `tf.compat.v1.train.get_global_step`.

    Returns:
        Scalar int32 tensor.

    Raises:
        ValueError: It is called outside a `model_fn`.
    """
    scope = scope_for("get_global_step")
    return scope.get_current_value(scope.known["global_step"])


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


def _variables(
    caller: str, var_list: Sequence[keras.Variable] | None
) -> tuple[keras.Variable, ...]:
    variables = scope_for(caller).trainable() if var_list is None else var_list
    for variable in variables:
        if not isinstance(variable, keras.Variable):
            raise TypeError(
                f"`var_list` of `{caller}` should hold keras.Variable objects."
                f" Received: {shown(variable)}"
            )
    if not variables:
        raise ValueError(
            f"`{caller}` found no trainable variables. Expected at least one: "
            "create the layers before the optimizer minimises."
        )
    # Of those that share a value, one.
    firsts = map(scope_for(caller).first, variables)
    return tuple({variable.path: variable for variable in firsts}.values())
