"""The optimizer over all replicas, and its slots.

`minimize` and `apply_gradients` return records. The program executes them after
`model_fn` has returned, in one forward and backward pass.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import keras

from keras_tpu_estimator.api.model_fn.update import Reduction
from keras_tpu_estimator.api.model_fn.updates import (
    Gradient,
    TrainOp,
    single_optimizers,
)
from keras_tpu_estimator.api.optimizers.optax_optimizer import (
    GradientTransformation,
    Optax,
    as_keras,
)
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.mesh import replica_context
from keras_tpu_estimator.base.mesh.replica_context import (
    Groups,
    ReduceDtype,
    check_groups,
    check_partition,
    combined_in,
)
from keras_tpu_estimator.base.tracing.gradient_requests import gradients, scalar
from keras_tpu_estimator.base.tracing.variables import scope_for
from keras_tpu_estimator.base.upstream import keras_models

GradientAndVariable = tuple[Gradient | None, keras.Variable]


@runtime_checkable
class PlainOptimizer(Protocol):
    """An optimizer whose method assigns variables, as those of TensorFlow programs do.

    Such a method runs while `model_fn` is traced, with combined gradients.
    """

    def apply_gradients(
        self, grads_and_vars: Iterable[GradientAndVariable], global_step: Any = None
    ) -> Any:
        """Assigns new values to variables; what it returns is a train op."""


class CrossShardOptimizer:
    """An optimizer that first averages (or sums) gradients over all replicas.

    The counterpart of `tf.compat.v1.tpu.CrossShardOptimizer` for Keras and
    optax optimizers. On one replica it behaves like the wrapped optimizer.

    Args:
        opt: A `keras.optimizers.Optimizer`, with any schedule, an optax
            gradient transformation, or your own object whose method
            `apply_gradients(grads_and_vars, global_step)` assigns variables.
        reduction: `"mean"` (the default) or `"sum"` over the replicas.
        group_assignment: Lists of replica numbers. Each group combines only its
            own gradients, and so trains a separate model; only the first
            replica's model is saved, evaluated and logged. Defaults to `None`,
            for one group of all replicas.
        reduce_dtype: The dtype in which gradients are combined: "float32", or
            "bfloat16", which halves the transferred bytes. Defaults to `None`,
            for `RunConfig.reduce_dtype`, or else the dtype of each gradient,
            except that float16 uses "float32".
            A CPU adds at least in float32.
        name: Accepted for compatibility. Defaults to "CrossShardOptimizer".

    Raises:
        ValueError: `reduction` or `reduce_dtype` is unknown, or
            `group_assignment` is malformed.
        TypeError: `opt` is no optimizer.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import keras
    >>> optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
    >>> optimizer.reduction
    'mean'
    """

    def __init__(
        self,
        opt: keras.optimizers.Optimizer | GradientTransformation | PlainOptimizer,
        reduction: str = "mean",
        name: str = "CrossShardOptimizer",
        group_assignment: Groups | None = None,
        reduce_dtype: ReduceDtype | None = None,
    ):
        opt = as_keras(opt)
        if not isinstance(opt, PlainOptimizer) or isinstance(opt, CrossShardOptimizer):
            raise TypeError(
                "`opt` must be a keras.optimizers.Optimizer, one of optax, or "
                f"an object with `apply_gradients`. Received: {shown(opt)}. Replace "
                "an optimizer of tf.train by the one of keras.optimizers with that "
                "name."
            )
        # The original's constants of tf.losses.Reduction are also accepted.
        reduction_name = str(reduction).lower().removeprefix("weighted_")
        if reduction_name not in ("mean", "sum"):
            raise ValueError(
                "`reduction` must be 'mean' or 'sum'. Received: "
                f"reduction={reduction!r}"
            )
        if reduce_dtype not in (None, "bfloat16", "float32"):
            raise ValueError(
                "`reduce_dtype` must be 'bfloat16', 'float32', or None for "
                "the dtype of each gradient. Received: "
                f"reduce_dtype={reduce_dtype!r}"
            )
        if group_assignment is not None:
            check_groups(group_assignment)
        self.optimizer = opt
        self.reduction: Reduction = "mean" if reduction_name == "mean" else "sum"
        self.name = name
        self._groups = group_assignment
        self._reduce_dtype = reduce_dtype

    def minimize(
        self,
        loss: Any,
        global_step: Any = None,
        var_list: Sequence[keras.Variable] | None = None,
        name: str | None = None,
    ) -> Any:
        """Returns a train op that minimizes `loss`.

        Args:
            loss: Scalar tensor.
            var_list: Variables to update. Defaults to all trainable ones.
            global_step: Accepted for compatibility; the program itself counts
                one step for each batch. Defaults to `None`.
            name: Accepted for compatibility. Defaults to `None`.

        Returns:
            A `TrainOp`, or what your own optimizer returns.

        Raises:
            ValueError: The call is outside a `model_fn`, no variables exist,
                `loss` is not a scalar, or `group_assignment` does not cover the
                replicas.
        """
        del name
        if not isinstance(self.optimizer, keras.optimizers.Optimizer):
            pairs = self.compute_gradients(scalar(loss), var_list)
            return self.apply_gradients(pairs, global_step)
        return TrainOp(
            self.optimizer,
            _variables("minimize", var_list),
            loss=scalar(loss),
            reduction=self.reduction,
            groups=self._several_groups(),
            reduce_dtype=self._reduce_dtype,
        )

    def compute_gradients(
        self,
        loss: Any,
        var_list: Sequence[keras.Variable] | None = None,
    ) -> list[GradientAndVariable]:
        """Returns this replica's share of the gradients of `loss`.

        As in the original, with reduction "mean" the loss is first divided by
        the number of replicas (of a group), so that `apply_gradients` only
        sums.

        Args:
            loss: Scalar tensor.
            var_list: Variables of the gradients. Defaults to all trainable
                ones.

        Returns:
            A list of (gradient, variable) pairs.

        Raises:
            ValueError: As `minimize`.
        """
        variables = _variables("compute_gradients", var_list)
        if self.reduction == "mean":
            loss = loss / self._reduced_together()
        shares = gradients(loss, variables, self.reduction, "zero")
        return list(zip(shares, variables, strict=True))

    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: Any = None,
        name: str | None = None,
    ) -> Any:
        """Returns a train op that sums gradients over replicas and applies
        them.

        Args:
            grads_and_vars: Pairs as `compute_gradients` returns them. Pairs
                without a gradient are ignored.
            global_step: Accepted for compatibility. Defaults to `None`.
            name: Accepted for compatibility. Defaults to `None`.

        Returns:
            A `TrainOp`, or what your own optimizer returns.

        Raises:
            ValueError: No pair has a gradient, or `group_assignment` does not
                cover the replicas.
        """
        del name
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        if not pairs:
            raise ValueError(
                "`grads_and_vars` must have at least one gradient. Received "
                "none: check that the loss depends on the variables."
            )
        grads, variables = zip(*pairs, strict=True)
        if not isinstance(self.optimizer, keras.optimizers.Optimizer):
            groups, dtype = self._several_groups(), combined_in(self._reduce_dtype)
            sums = (replica_context.sum_in_groups(g, groups, dtype) for g in grads)
            combined = list(zip(sums, variables, strict=True))
            return self.optimizer.apply_gradients(combined, global_step)
        return TrainOp(
            self.optimizer,
            variables,
            gradients=grads,
            reduction="sum",
            groups=self._several_groups(),
            reduce_dtype=self._reduce_dtype,
        )

    def variables(self) -> list[keras.Variable]:
        """The existing variables of the inner optimizer."""
        return list(getattr(self.optimizer, "variables", ()))

    def get_slot(self, var: keras.Variable, name: str) -> keras.Variable | None:
        """Returns the optimizer state of a variable, such as its momentum.

        Slots are created in the first step, after `model_fn` has returned.
        Hooks and `get_variable_value` accept a slot's `path`.

        Args:
            var: A variable that the optimizer updates.
            name: Keras's name, such as "momentum" or "velocity", or a name of
                the optimizers of `tf.compat.v1.train`, such as "m" or "v".

        Returns:
            The slot variable, or `None` if it does not exist (yet).

        Raises:
            TypeError: `var` is not a variable.
        """
        return slot(single_optimizers(self.optimizer), var, name)

    def get_slot_names(self) -> list[str]:
        """Returns Keras's names of the optimizer state of each variable.

        Returns:
            A sorted list, which is empty before the first step.
        """
        return slot_names(single_optimizers(self.optimizer))

    def _several_groups(self) -> Groups | None:
        """Returns the checked groups; `None` for one group of all replicas."""
        replicas = replica_context.replica_context().num_replicas
        check_partition(self._groups, replicas)
        is_one = self._groups is None or len(self._groups) == 1
        return None if is_one else self._groups

    def _reduced_together(self) -> int:
        """Returns the number of replicas that combine their gradients."""
        replicas = replica_context.replica_context().num_replicas
        groups = self._several_groups()
        return len(groups[0]) if groups and replicas > 1 else replicas


def _variables(
    caller: str, var_list: Sequence[keras.Variable] | None
) -> tuple[keras.Variable, ...]:
    variables = scope_for(caller).trainable() if var_list is None else var_list
    for variable in variables:
        if not isinstance(variable, keras.Variable):
            raise TypeError(
                f"`var_list` of `{caller}` must contain keras.Variable "
                f"objects. Received: {shown(variable)}"
            )
    if not variables:
        raise ValueError(
            f"`{caller}` found no trainable variables. Expected at least one: "
            "create the layers before the optimizer minimizes, and make "
            "variables of a flax, equinox or plain JAX model with "
            "kte.jax_params(name, init)."
        )
    # Variables that share a value count once.
    firsts = map(scope_for(caller).first, variables)
    return tuple({variable.path: variable for variable in firsts}.values())


# Methods of TensorFlow's optimizers that Keras's optimizers lack, by the replacement.
_OF_TENSORFLOW = {
    "compute_gradients": "kte.CrossShardOptimizer(optimizer)",
    "get_slot": "kte.CrossShardOptimizer(optimizer)",
    "get_slot_names": "kte.CrossShardOptimizer(optimizer)",
    "minimize": "kte.minimize(optimizer, loss)",
}


def minimize(
    optimizer: CrossShardOptimizer
    | keras.optimizers.Optimizer
    | GradientTransformation
    | PlainOptimizer,
    loss: Any,
    global_step: Any = None,
    var_list: Sequence[keras.Variable] | None = None,
) -> Any:
    """Returns a train op that minimizes `loss`, for any optimizer.

    Use it in a `model_fn` that makes a `CrossShardOptimizer` only if
    `params["use_tpu"]` is true. On several replicas, gradients of an unwrapped
    optimizer are also averaged.

    Args:
        optimizer: A `CrossShardOptimizer`, or any optimizer that it takes.
        loss: Scalar tensor.
        var_list: Variables to update. Defaults to all trainable ones.
        global_step: Accepted for compatibility. Defaults to `None`.

    Returns:
        A `TrainOp`, for the `train_op` of a spec, or what your own optimizer
        returns.

    Raises:
        ValueError: The call is outside a `model_fn`, no variables exist, or
            `loss` is not a scalar.
        TypeError: `optimizer` is not an optimizer.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> def train_op(loss, params):
    ...     optimizer = keras.optimizers.SGD(0.1)
    ...     if params["use_tpu"]:
    ...         optimizer = kte.CrossShardOptimizer(optimizer)
    ...     return kte.minimize(optimizer, loss)
    """
    if not isinstance(optimizer, CrossShardOptimizer):
        optimizer = CrossShardOptimizer(optimizer)
    return optimizer.minimize(loss, global_step, var_list)


def apply_gradients(
    optimizer: CrossShardOptimizer
    | keras.optimizers.Optimizer
    | GradientTransformation
    | PlainOptimizer,
    grads_and_vars: Iterable[GradientAndVariable],
    global_step: Any = None,
) -> Any:
    """Returns a train op that sums gradients over replicas and applies them.

    Use it where `kte.minimize` would compute the gradients itself.

    Args:
        optimizer: A `CrossShardOptimizer`, or any optimizer that it takes.
        grads_and_vars: Pairs of a gradient and a variable. Pairs without a gradient
            are ignored.
        global_step: Accepted for compatibility. Defaults to `None`.

    Returns:
        A `TrainOp`, for the `train_op` of a spec, or what your own optimizer
        returns.

    Raises:
        ValueError: The call is outside a `model_fn`, or no pair has a gradient.
        TypeError: `optimizer` is not an optimizer.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> def train_op(loss):
    ...     variables = kte.trainable_variables()
    ...     gradients = kte.gradients(loss, variables)
    ...     gradients, _ = kte.clip_by_global_norm(gradients, 1.0)
    ...     pairs = zip(gradients, variables)
    ...     return kte.apply_gradients(keras.optimizers.SGD(0.1), pairs)
    """
    if not isinstance(optimizer, CrossShardOptimizer):
        optimizer = CrossShardOptimizer(optimizer)
    return optimizer.apply_gradients(grads_and_vars, global_step)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Explains an `AttributeError` about methods of TensorFlow's optimizers."""
    try:
        yield
    except AttributeError as error:
        name = str(error.name)
        is_optimizer = isinstance(error.obj, keras.optimizers.Optimizer)
        if not is_optimizer or name not in _OF_TENSORFLOW:
            raise
        raise AttributeError(
            f"Keras optimizers have no method `{name}`. Received: a call of "
            f"it on {type(error.obj).__name__}. Use `{_OF_TENSORFLOW[name]}`, "
            "with and without `use_tpu`: on one device it behaves like the "
            "wrapped optimizer."
        ) from error


# Keras's and optax's names by those of the optimizers of `tf.compat.v1.train`.
_ORIGINALS = {
    "m": ("momentum", "mu"),
    "v": ("velocity", "norm", "nu"),
    "vhat": ("velocity_hat",),
    "rms": ("velocity",),
    "mg": ("average_gradient",),
    "accum": ("accumulator", "accumulated_grad"),
    "accum_update": ("accumulated_delta_var",),
}


def slot(
    optimizers: Iterable[keras.optimizers.Optimizer],
    variable: keras.Variable,
    name: str,
) -> keras.Variable | None:
    """Returns the slot of a variable in one of several optimizers."""
    if not isinstance(variable, keras.Variable):
        raise TypeError(
            "A slot belongs to a keras.Variable. Received: "
            f"{shown(variable)}. Pass one of kte.trainable_variables()."
        )
    for optimizer in optimizers:
        by_path = {state.path: state for state in optimizer.variables}
        for own_name in (name, *_ORIGINALS.get(name, ())):
            path = _path(optimizer, variable, own_name)
            if path in by_path:
                return by_path[path]
    return None


def slot_names(
    optimizers: Iterable[keras.optimizers.Optimizer],
) -> list[str]:
    """Returns Keras's sorted names of slots; none before the first update."""
    return sorted(
        {
            slot_variable.path.removeprefix(prefix).removesuffix(suffix)
            for optimizer in optimizers
            for updated in keras_models.updated_variables(optimizer)
            for prefix, suffix in [_path(optimizer, updated, "\0").split("\0")]
            for slot_variable in optimizer.variables
            if slot_variable.path.startswith(prefix)
            and slot_variable.path.endswith(suffix)
        }
    )


def _path(
    optimizer: keras.optimizers.Optimizer, variable: keras.Variable, name: str
) -> str:
    """Returns the path of a slot by its name and variable."""
    if isinstance(optimizer, Optax):
        return optimizer.slot_path(variable, name)
    return f"{optimizer.name}/{variable.path.replace('/', '_')}_{name}"
