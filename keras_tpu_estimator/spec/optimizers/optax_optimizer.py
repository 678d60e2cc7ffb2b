"""A transformation of gradients of optax, as an optimizer of Keras."""

import contextlib
import inspect
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Protocol

import jax
import jax.numpy as jnp
import keras

from keras_tpu_estimator.ground.base.shown import shown
from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.ground.tracing import keras_internals
from keras_tpu_estimator.ground.tracing.array_trees import Leaf
from keras_tpu_estimator.ground.tracing.array_trees import as_leaf
from keras_tpu_estimator.ground.tracing.array_trees import as_value
from keras_tpu_estimator.ground.tracing.array_trees import leaves_of
from keras_tpu_estimator.ground.tracing.array_trees import make_variable
from keras_tpu_estimator.ground.tracing.slot_variable import SlotVariable
from keras_tpu_estimator.ground.tracing.variables import current_scope


class GradientTransformation(Protocol):
    """What optax calls so: two functions without state of their own."""

    init: Any
    update: Any


_RATE = ("hyperparams", "learning_rate")


class Optax(keras.optimizers.Optimizer):
    """An optimizer of optax, for `CrossShardOptimizer` and `TrainOp`.

    `CrossShardOptimizer(optax.adamw(1e-3))` makes one itself; this is for a
    name of one's own. Its state is saved by path: of the variable
    `dense/kernel`, the `mu` of Adam is `optax/mu/dense/kernel`. Functions of
    parameters, such as masks and labels, are given dicts by the parts of the
    variables' paths, `{"dense": {"kernel": ...}}`.

    Args:
        tx: An `optax.GradientTransformation`, or anything else with `init` and
            `update`, such as `optax.MultiSteps`.
        name: What the paths of its state begin with. Defaults to `None`, for
            "optax", and "optax_1" for a second one.

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
                "`tx` should have the methods `init` and `update`, as the "
                f"transformations of optax do. Received: {shown(tx)}."
            )
        # Keras wants a rate; the transformation has its own.
        unknown = keras.optimizers.schedules.LearningRateSchedule()
        super().__init__(unknown, name=name)
        self.tx = tx
        self._structure: Any = None
        self._state: tuple[keras.Variable, ...] = ()
        self._key_impls: tuple[Any, ...] = ()
        self._rate: keras.Variable | None = None
        self._loss: Any = None

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Makes variables of the state for these variables."""
        if self.built:
            return
        super().build(list(variables))
        state = self.tx.init(_nest(variables, map(_first_value, variables)))
        leaves = leaves_of(jax.tree.map(jnp.asarray, state), positions=False)
        shapes = {each.path: tuple(each.shape) for each in variables}
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
            trainable_variables: The variables. Defaults to those that it was
                built for.
        """
        if trainable_variables is not None:
            self.build(trainable_variables)
        variables = list(
            trainable_variables or keras_internals.updated_variables(self)
        )
        params = _nest(variables, (each.value for each in variables))
        loss = {} if self._loss is None else {"value": self._loss}
        updates, state = self.tx.update(
            _nest(variables, grads), self._current_state(), params, **loss
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
        """Whether `update` takes `value`, or anything else by name."""
        parameters = inspect.signature(self.tx.update).parameters
        return "value" in parameters or any(
            each.kind is each.VAR_KEYWORD for each in parameters.values()
        )

    @contextlib.contextmanager
    def at_loss(self, loss: Any) -> Iterator[None]:
        """Updates by this loss, as optax's `value`, in a `with` block."""
        self._loss = loss
        try:
            yield
        finally:
            self._loss = None

    @property
    def learning_rate(self) -> keras.Variable | None:
        """That of `optax.inject_hyperparams`, or `None` without it."""
        return self._rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if self._rate is None:
            raise ValueError(
                "The learning rate of an optimizer of optax can be set if "
                "`optax.inject_hyperparams` makes it. Received one without: "
                f"{self.name!r}. Write `optax.inject_hyperparams(optax.adamw)("
                "learning_rate=...)`."
            )
        self._rate.assign(value)

    def slot_path(self, variable: keras.Variable, name: str) -> str:
        """The path of what it keeps of a name for a variable."""
        return f"{self.name}/{name}/{variable.path}"

    def get_config(self) -> dict[str, Any]:
        """What it was made with."""
        return {"tx": self.tx, "name": self.name}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> "Optax":
        """Makes one with what another one was made with."""
        del custom_objects
        return cls(**config)

    def _make(
        self, leaf: Leaf, shapes: Mapping[str, tuple[int, ...]]
    ) -> keras.Variable:
        """The variable of an array of the state."""
        made = make_variable(
            leaf, [self.name], trainable=False, of=SlotVariable
        )
        tails = ("/".join(leaf.parts[n:]) for n in range(len(leaf.parts)))
        shape = tuple(made.shape)
        if isinstance(made, SlotVariable):
            made.owner = next(
                (p for p in tails if shapes.get(p) == shape), None
            )
        return made

    def _current_state(self) -> Nest:
        values = [
            as_leaf(variable.value, key_impl)
            for variable, key_impl in zip(
                self._state, self._key_impls, strict=True
            )
        ]
        return jax.tree.unflatten(self._structure, values)


def is_optax(optimizer: object) -> bool:
    """Whether something is a transformation of gradients, as optax has them.

    Example:

    >>> is_optax(keras.optimizers.SGD(0.1))
    False
    """
    return (
        not isinstance(optimizer, keras.optimizers.Optimizer | type)
        and callable(getattr(optimizer, "init", None))
        and callable(getattr(optimizer, "update", None))
    )


def as_keras(optimizer: Any) -> Any:
    """An optimizer of optax as one of Keras; anything else as it is."""
    return Optax(optimizer) if is_optax(optimizer) else optimizer


def _first_value(variable: keras.Variable) -> jax.Array:
    """The value from which that of a state begins."""
    scope = current_scope()
    value: jax.Array = (
        variable.value if scope is None else scope.value_before(variable)
    )
    return value


def _nest(variables: Iterable[keras.Variable], values: Iterable[Any]) -> Nest:
    """Values of variables as dicts by the parts of their paths."""
    nest: dict[str, Any] = {}
    for variable, value in zip(variables, values, strict=True):
        *parents, name = variable.path.split("/")
        inner = nest
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                break
        if not isinstance(inner, dict) or name in inner:
            raise ValueError(
                "A variable that an optimizer of optax updates should have no "
                "path that begins with another one's. Received: "
                f"{variable.path!r}. Give one of the two another name."
            )
        inner[name] = value
    return nest


def _values(variables: Iterable[keras.Variable], nest: Nest) -> list[Any]:
    """The other way round."""
    found = []
    for variable in variables:
        value = nest
        for part in variable.path.split("/"):
            value = value[part]
        found.append(value)
    return found
