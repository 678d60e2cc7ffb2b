"""Variables by path.

A `model_fn` creates its layers again each time it runs. Here it runs under a
`VariableScope`, which identifies a variable by its path: the first trace makes it, and
each later trace receives the value of the same path.
"""

import contextlib
import contextvars
import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import keras
import numpy as np

from keras_tpu_estimator.base.common.dtype_changes import as_dtype
from keras_tpu_estimator.base.common.pickling import reduce_error
from keras_tpu_estimator.base.common.types import TensorLike
from keras_tpu_estimator.base.tracing import jaxprs
from keras_tpu_estimator.base.tracing.variable_classes import (
    KeyVariable,
    RowsVariable,
)
from keras_tpu_estimator.base.upstream import keras_variables
from keras_tpu_estimator.base.upstream.keras_variables import (
    assignment_checked,
    creation_intercepted,
    tensors_accepted_as_rates,
)

ArraysByPath: TypeAlias = dict[str, jax.Array]
# Some may be on the host before they are copied to the devices.
AnyArraysByPath: TypeAlias = Mapping[str, jax.Array | np.ndarray]
Initializer: TypeAlias = Callable[..., jax.Array | np.ndarray]
Sharing: TypeAlias = Literal["never", "allowed", "required"]

_active: contextvars.ContextVar["VariableScope | None"] = contextvars.ContextVar(
    "variable_scope", default=None
)


class TwoUnderOnePathError(ValueError):
    """Two variables of one call of `model_fn` have the same path.

    Attributes:
        path: The path.
    """

    __reduce__ = reduce_error

    def __init__(self, path: str):
        super().__init__(
            "Paths of variables must be unique in one call of model_fn. Received: "
            f"two variables with the path {path!r}. Give one of the two layers "
            "(or variables) another `name`. To use a layer twice, create it once "
            "and call it twice, or share it by "
            "kte.variable_scope(name, reuse=kte.AUTO_REUSE)."
        )
        self.path = path


class LeakedTensorError(ValueError):
    """`model_fn` used a tensor of another call.

    Args:
        use: The line and the function that use it, or `None`.
        origin: The line and the function that made it, or `None`.
    """

    __reduce__ = reduce_error

    def __init__(self, use: str | None = None, origin: str | None = None) -> None:
        at = f" at {use}" if use else ""
        made_at = f" It was made at {origin}." if origin else ""
        super().__init__(
            "model_fn must use only tensors made from the features, labels and "
            "variables of this call. Received: a tensor that leaked from an "
            f"earlier call or from an inner function, used{at}.{made_at} Keep no "
            "tensors in globals, attributes or default arguments."
        )


class NoScopeError(ValueError):
    """A function of a `model_fn` was called outside one.

    Attributes:
        caller: The name of the function.
    """

    __reduce__ = reduce_error

    def __init__(self, caller: str):
        super().__init__(
            f"`{caller}` must be called while model_fn runs, because variables exist "
            "only there. Received: a call outside a model_fn. Move it into "
            "model_fn."
        )
        self.caller = caller


class VariableScope(keras.StatelessScope):
    """One variable for each path in a trace, although `model_fn` makes its layers again
    each time that it runs.

    The first read of a variable without a value makes its initial value; this value and
    those of known variables become arguments of the traced function.

    Args:
        variables: The program's variables by path.
        values: A traced value for each path that already has one.
        objects: Variable objects of an earlier trace that represent their paths in this
            one.
    """

    def __init__(
        self,
        variables: Mapping[str, keras.Variable],
        values: Mapping[str, jax.Array],
        objects: Mapping[str, keras.Variable],
    ):
        super().__init__(collect_losses=True, initialize_variables=False)
        self.program_variables = variables
        self.values = dict(values)
        # Values before any assignment.
        self.before = dict(values)
        self.objects = dict(objects)
        self.new: dict[str, keras.Variable] = {}
        self.initials: ArraysByPath = {}
        self.updated: set[str] = set()
        self.initializers: dict[str, Initializer] = {}
        self._numbers = False
        self._copies = False
        self.sharing: Sharing = "never"
        # The paths of the blocks of `variable_scope`.
        self.blocks: set[str] = set()
        # Further objects for a variable that another object represents.
        self._twins: list[keras.Variable] = []

    def __enter__(self) -> "VariableScope":
        self._token = _active.set(self)
        self._blocks = contextlib.ExitStack()
        self._blocks.enter_context(creation_intercepted(enter_into_scope))
        self._blocks.enter_context(assignment_checked(fitting))
        self._blocks.enter_context(tensors_accepted_as_rates(is_tensor_of_scope))
        return super().__enter__()

    def __exit__(self, *exception: object) -> None:
        self._blocks.close()
        _active.reset(self._token)
        super().__exit__(*exception)

    def created(self, variable: keras.Variable, initializer: Initializer) -> None:
        """Adds a variable that the traced function has just made."""
        path = variable.path
        if is_accumulator(variable):  # Keras gives all `Mean`s the same name.
            path = self._free_path(*path.partition("/"))
        elif self._numbers or is_recurrent_state(variable):
            path = self._free_path(path)
        keras_variables.set_path(variable, path)
        if self._is_shared(path, variable):
            self._twins.append(variable)
            return
        if path in self.objects:
            raise TwoUnderOnePathError(path)
        self._enter(path, variable)
        self.initializers[path] = initializer

    def path_of(self, variable: keras.Variable) -> str:
        """Returns the path of a variable, and adopts a variable from outside."""
        path = variable.path
        if path not in self.objects:
            self._enter(path, variable)
            if self._copies and path in self.new:
                # A shallow copy shares the array until the first assignment, and
                # nothing else that changes.
                self.new[path] = copy.copy(variable)
        elif self.objects[path] is not variable and not any(
            twin is variable for twin in self._twins
        ):
            if not is_recurrent_state(variable):
                raise TwoUnderOnePathError(path)
            path = self._free_path(path)
            keras_variables.set_path(variable, path)
            self._enter(path, variable)
        return path

    def get_current_value(self, variable: keras.Variable) -> jax.Array:
        """Returns the traced value of a variable. Keras calls this on every read."""
        path = self.path_of(variable)
        if path not in self.values:
            self._introduce(path)
        return self.values[path]

    def value_before(self, variable: keras.Variable) -> jax.Array:
        """Returns the value of a variable before any assignment."""
        self.get_current_value(variable)
        return self.before[variable.path]

    def add_update(self, update: tuple[keras.Variable, jax.Array]) -> None:
        """Records a new value. Keras calls this on every assignment."""
        variable, value = update
        # Read the old value first, so that the variable becomes an argument.
        current = self.get_current_value(variable)
        if variable.trainable:
            value = _in_place_of(current, value)
        self.values[variable.path] = value
        self.updated.add(variable.path)

    def introduce_unread(self) -> None:
        """Turns new variables that nothing has read into arguments."""
        for path in self.new:
            if path not in self.values:
                self._introduce(path)
            elif path not in self.initials:
                self.initials[path] = self._initial(path)

    @contextlib.contextmanager
    def numbering(self) -> Iterator[None]:
        """Numbers new variables of one path in a block, as Keras's Adafactor needs."""
        self._numbers = True
        try:
            yield
        finally:
            self._numbers = False

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        """Copies variables from outside in a block; only the copies are trained."""
        before, self._copies = self._copies, True
        try:
            yield
        finally:
            self._copies = before

    @contextlib.contextmanager
    def sharing_of(self, sharing: Sharing) -> Iterator[None]:
        """Sets whether new variables share the values of others with the same path."""
        before, self.sharing = self.sharing, sharing
        try:
            yield
        finally:
            self.sharing = before

    def first(self, variable: keras.Variable) -> keras.Variable:
        """Returns the object that represents a shared variable."""
        return self.objects.get(variable.path, variable)

    def trainable(self) -> list[keras.Variable]:
        """Returns the trainable variables so far, in the order of creation."""
        return [v for v in self.objects.values() if v.trainable]

    def _free_path(self, name: str, *suffix: str) -> str:
        """Returns the path, with a count after its name if it is taken."""
        path = "".join((name, *suffix))
        counted = (
            "".join((f"{name}_{count}", *suffix)) for count in itertools.count(1)
        )
        while path in self.objects:
            path = next(counted)
        return path

    def _is_shared(self, path: str, variable: keras.Variable) -> bool:
        # Accumulators and seeds may be new at any time.
        is_weight = not (is_accumulator(variable) or is_seed(variable))
        is_new = path not in self.objects
        if self.sharing == "required" and is_new and is_weight:
            raise ValueError(
                f"With reuse=True the variable {path!r} must have been made "
                "before in this call of model_fn. Received: a new one. Call "
                "the layers without reuse first, or pass reuse=AUTO_REUSE."
            )
        if self.sharing == "never" or is_new:
            return False
        shape = tuple(self.objects[path].shape)
        if shape != tuple(variable.shape):
            raise ValueError(
                f"The variable {path!r} must be reused with its shape {shape}. "
                f"Received: the shape {tuple(variable.shape)}. Give the layers "
                "the same size, or other names."
            )
        return True

    def _enter(self, path: str, variable: keras.Variable) -> None:
        self.objects[path] = variable
        if isinstance(self.program_variables.get(path), RowsVariable):
            raise ValueError(
                "Embedding tables and their optimizer state must have other names "
                f"than variables of model_fn. Received: {path!r} for both. "
                "Rename the layer or the table."
            )
        if path not in self.program_variables:
            self.new[path] = variable
        elif tuple(self.program_variables[path].shape) != tuple(variable.shape):
            raise ValueError(
                f"The variable {path!r} must have the same shape as in earlier calls "
                f"of model_fn, {tuple(self.program_variables[path].shape)}. Received: "
                f"{tuple(variable.shape)}. Give the layer the same size in every "
                "mode, or another `name`."
            )

    def _introduce(self, path: str) -> None:
        self.initials[path] = self._initial(path)
        self.values[path] = jaxprs.mark(self.initials[path], path)
        self.before[path] = self.values[path]

    def _initial(self, path: str) -> jax.Array:
        variable = self.objects[path]
        dtype = keras_variables.stored_dtype(variable)
        if path not in self.initializers:
            # The initial value of an adopted variable is read after the trace.
            return jnp.zeros(variable.shape, dtype)
        initial = self.initializers[path](variable.shape, dtype=dtype)
        if not isinstance(initial, jax.Array):
            initial = as_dtype(initial, dtype, f"The initial value of {path!r}")
        return jnp.asarray(initial, dtype)


def is_accumulator(variable: keras.Variable) -> bool:
    """Returns whether a variable accumulates a metric in one evaluation."""
    return variable.synchronization == "on_read"


def is_seed(variable: keras.Variable) -> bool:
    """Returns whether a variable is the source of random numbers."""
    is_of_keras = variable.name == "seed_generator_state"
    return isinstance(variable, KeyVariable) or (is_of_keras and variable.shape == (2,))


def is_recurrent_state(variable: keras.Variable) -> bool:
    """Returns whether a variable is a layer's state, by its name in Keras."""
    return variable.name == "rnn_state"


@jax.custom_jvp
def _in_place_of(current: jax.Array, value: jax.Array) -> jax.Array:
    """Returns a value assigned to a weight, with the gradient of the weight.

    As in TensorFlow, no gradient passes through an assignment, and the gradient by a
    weight is taken at its current value.
    """
    del current
    return value


@_in_place_of.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return primals[1], tangents[0]


def current_scope() -> VariableScope | None:
    """Returns the scope of this thread's trace, or `None`."""
    return _active.get()


def enter_into_scope(
    construct: Callable[..., None],
    variable: keras.Variable,
    initializer: TensorLike | Initializer,
    kwargs: dict[str, Any],
) -> None:
    """Constructs a variable, in a scope also from a value or an initializer's name."""
    scope = current_scope()
    if scope is None:
        construct(variable, initializer, **kwargs)
        return
    if isinstance(initializer, str):
        initializer = keras.initializers.get(initializer)
    if not callable(initializer):
        initializer = _constant(initializer, kwargs)
    construct(variable, initializer, **kwargs)
    scope.created(variable, initializer)


def fitting(variable: keras.Variable, value: Any) -> Any:
    """Returns an assigned value in the variable's dtype, which it must fit."""
    if not isinstance(value, np.ndarray | np.generic):
        return value
    dtype = keras_variables.stored_dtype(variable)
    name = f"The value that is assigned to {variable.path!r}"
    return as_dtype(value, jax.dtypes.canonicalize_dtype(dtype), name)


def copying() -> contextlib.AbstractContextManager[None]:
    """Makes the current trace copy variables from outside in a block."""
    scope = current_scope()
    return contextlib.nullcontext() if scope is None else scope.copying()


def is_tensor_of_scope(value: object) -> bool:
    """Returns whether a value is a tensor or a variable while a function is traced."""
    return current_scope() is not None and isinstance(value, jax.Array | keras.Variable)


def _constant(value: TensorLike, kwargs: dict[str, Any]) -> Initializer:
    """Returns an initializer for a value; adds its shape and dtype to the arguments."""
    if isinstance(value, keras.Variable):
        value = value.value
    if not isinstance(value, jax.Array):
        is_python = not hasattr(value, "dtype")
        value = np.asarray(value)
        if is_python and value.dtype.kind == "i" and _is_real(kwargs):
            # Python numbers have no dtype, and are rounded like floats.
            value = value.astype("float64")
    kwargs["shape"] = value.shape
    if kwargs.get("dtype") is None:
        is_wide = isinstance(value, np.ndarray) and value.dtype == np.float64
        dtype = keras.config.floatx() if is_wide else value.dtype
        dtype = jax.dtypes.canonicalize_dtype(dtype)
        kwargs["dtype"] = keras.backend.standardize_dtype(dtype)
    return lambda shape, dtype=None: value


def _is_real(kwargs: dict[str, Any]) -> bool:
    dtype = keras.backend.standardize_dtype(kwargs.get("dtype") or "int32")
    return keras.backend.is_float_dtype(dtype)


def scope_for(caller: str) -> VariableScope:
    """Returns the current trace's scope, or raises an error that names the caller."""
    scope = current_scope()
    if scope is None:
        raise NoScopeError(caller)
    return scope
