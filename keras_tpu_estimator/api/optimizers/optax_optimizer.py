"""Optax gradient transformations as Keras optimizers."""

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import keras

from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.tracing.array_trees import (
    Leaf,
    as_leaf,
    as_value,
    leaves_of,
    make_variable,
)
from keras_tpu_estimator.base.tracing.variable_classes import SlotVariable
from keras_tpu_estimator.base.tracing.variables import current_scope
from keras_tpu_estimator.base.upstream import keras_models


class GradientTransformation(Protocol):
    """The protocol of optax transformations: two functions without state."""

    init: Any
    update: Any


_RATE = ("hyperparams", "learning_rate")


class Optax(keras.optimizers.Optimizer):
    """A Keras optimizer that applies an optax gradient transformation.

    `CrossShardOptimizer(optax.adamw(1e-3))` creates one; use this class to
    choose its name. Its state is saved by path: Adam's `mu` of the variable
    `dense/kernel` is `optax/mu/dense/kernel`. Functions of parameters, such as
    masks and labels, receive dicts by the parts of the variables' paths,
    `{"dense": {"kernel": ...}}`.

    Args:
        tx: An `optax.GradientTransformation`, or another object with `init` and
            `update`, such as `optax.MultiSteps`.
        name: Path prefix of its state. Defaults to `None`, for "optax", and
            "optax_1" for a second one.

    Raises:
        TypeError: `tx` lacks `init` or `update`.

    Example:

    >>> import types
    >>> import jax
    >>> import keras
    >>> import keras_tpu_estimator as kte
    >>> sgd = types.SimpleNamespace(  # As optax.sgd(0.5) is.
    ...     init=lambda params: (),
    ...     update=lambda g, state, params: (jax.tree.map(
    ...         lambda each: -0.5 * each, g), state))
    >>> weight = keras.Variable([1.0, 2.0], name="weight")
    >>> optimizer = kte.optimizers.Optax(sgd, name="sgd")
    >>> optimizer.apply([keras.ops.ones(2)], [weight])
    >>> weight.numpy().tolist()
    [0.5, 1.5]
    """

    def __init__(self, tx: Any, name: str | None = None):
        if not is_optax(tx):
            raise TypeError(
                "`tx` must have the methods `init` and `update`, like the "
                f"transformations of optax. Received: {shown(tx)}."
            )
        # Keras requires a rate; the transformation has its own.
        unknown = keras.optimizers.schedules.LearningRateSchedule()
        super().__init__(unknown, name=name)
        self.tx = tx
        self._structure: Any = None
        self._state: tuple[keras.Variable, ...] = ()
        self._key_impls: tuple[Any, ...] = ()
        self._rate: keras.Variable | None = None
        self._loss: Any = None

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Creates variables of the state for these variables."""
        if self.built:
            return
        super().build(list(variables))
        state = self.tx.init(_tree(variables, map(_first_value, variables)))
        leaves = leaves_of(jax.tree.map(jnp.asarray, state), positions=False)
        shapes = {variable.path: tuple(variable.shape) for variable in variables}
        self._structure = jax.tree.structure(state)
        self._state = tuple(self._make(leaf, shapes) for leaf in leaves)
        self._key_impls = tuple(leaf.key_impl for leaf in leaves)
        rates = [
            variable
            for leaf, variable in zip(leaves, self._state, strict=True)
            if leaf.parts[-2:] == _RATE
        ]
        self._rate = rates[0] if rates else None

    def apply(
        self,
        grads: Sequence[Any],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> None:
        """Updates variables, and the state.

        Args:
            grads: A gradient for each variable.
            trainable_variables: The variables. Defaults to those it was built
                for.
        """
        if trainable_variables is not None:
            self.build(trainable_variables)
        variables = list(trainable_variables or keras_models.updated_variables(self))
        params = _tree(variables, (variable.value for variable in variables))
        loss = {} if self._loss is None else {"value": self._loss}
        updates, state = self.tx.update(
            _tree(variables, grads), self._current_state(), params, **loss
        )
        new = jax.tree.leaves(state)
        for variable, value in zip(self._state, new, strict=True):
            variable.assign(as_value(value))
        for variable, change in zip(
            variables, _values(variables, updates), strict=True
        ):
            variable.assign((variable.value + change).astype(variable.dtype))
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))
        self.iterations.assign_add(1)

    @property
    def takes_loss(self) -> bool:
        """Whether `update` accepts `value`, or any keyword."""
        parameters = inspect.signature(self.tx.update).parameters
        return "value" in parameters or any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
        )

    @contextlib.contextmanager
    def at_loss(self, loss: Any) -> Iterator[None]:
        """Passes this loss to the update, as optax's `value`, in a `with`
        block.
        """
        self._loss = loss
        try:
            yield
        finally:
            self._loss = None

    @property
    def learning_rate(self) -> keras.Variable | None:
        """The rate of `optax.inject_hyperparams`, or `None` without it."""
        return self._rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if self._rate is None:
            raise ValueError(
                "The learning rate of an optax optimizer can only be set "
                "with `optax.inject_hyperparams`. Received one without: "
                f"{self.name!r}. Write "
                "`optax.inject_hyperparams(optax.adamw)(learning_rate=...)`."
            )
        self._rate.assign(value)

    def slot_path(self, variable: keras.Variable, name: str) -> str:
        """Returns the path of a slot by its name and variable."""
        return f"{self.name}/{name}/{variable.path}"

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration of the optimizer."""
        return {"tx": self.tx, "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "Optax":
        """Returns an optimizer with the configuration of another one."""
        del custom_objects
        return cls(**config)

    def _make(
        self, leaf: Leaf, shapes: Mapping[str, tuple[int, ...]]
    ) -> keras.Variable:
        """Creates the variable of an array of the state."""
        variable = make_variable(leaf, [self.name], trainable=False, of=SlotVariable)
        tails = ("/".join(leaf.parts[n:]) for n in range(len(leaf.parts)))
        shape = tuple(variable.shape)
        if isinstance(variable, SlotVariable):
            variable.owner = next((p for p in tails if shapes.get(p) == shape), None)
        return variable

    def _current_state(self) -> PyTree:
        values = [
            as_leaf(variable.value, key_impl)
            for variable, key_impl in zip(self._state, self._key_impls, strict=True)
        ]
        return jax.tree.unflatten(self._structure, values)


def is_optax(optimizer: object) -> bool:
    """Returns whether an object is an optax gradient transformation."""
    return (
        not isinstance(optimizer, keras.optimizers.Optimizer | type)
        and callable(getattr(optimizer, "init", None))
        and callable(getattr(optimizer, "update", None))
    )


def as_keras(optimizer: Any) -> Any:
    """Returns optax transformations as Keras optimizers; others unchanged."""
    return Optax(optimizer) if is_optax(optimizer) else optimizer


def _first_value(variable: keras.Variable) -> jax.Array:
    """Returns the initial value of an array of the state."""
    scope = current_scope()
    value: jax.Array = variable.value if scope is None else scope.value_before(variable)
    return value


def _tree(variables: Iterable[keras.Variable], values: Iterable[Any]) -> PyTree:
    """Returns values of variables as dicts by the parts of their paths."""
    tree: dict[str, Any] = {}
    for variable, value in zip(variables, values, strict=True):
        *parents, name = variable.path.split("/")
        inner = tree
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                break
        if not isinstance(inner, dict) or name in inner:
            raise ValueError(
                "The path of a variable that an optax optimizer updates must "
                "not begin with that of another one. Received: "
                f"{variable.path!r}. Rename one of the two."
            )
        inner[name] = value
    return tree


def _values(variables: Iterable[keras.Variable], tree: PyTree) -> list[Any]:
    """Returns the values of such dicts, in the order of the variables."""
    values = []
    for variable in variables:
        value = tree
        for part in variable.path.split("/"):
            value = value[part]
        values.append(value)
    return values
