"""Variables by path, and a function's trace over them.

A `model_fn` creates its layers anew each time it runs, as it did in TF1. Here
it runs under `VariableScope`, where a variable is its path: the first trace
makes it, every later one is given the value under the same path. `capture`
runs a function once that way and returns it as a pure one, whose variables
are arguments.
"""

import contextlib
import contextvars
import dataclasses
import random
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core as jex

from keras_tpu_estimator import keras_internals

_MARK = "keras_tpu_estimator.variable:"
_active: contextvars.ContextVar["VariableScope | None"] = (
    contextvars.ContextVar("variable_scope", default=None)
)


class TwoUnderOnePathError(ValueError):
    """Two variables of one call of `model_fn` have the same path.

    Args:
        path: The path.
    """

    def __init__(self, path: str):
        super().__init__(
            f"Two variables have the path {path!r}. Expected one variable for "
            "each path in one call of model_fn. Give one of the two layers "
            "(or variables) another `name`; a layer that is used twice is "
            "created once and called twice."
        )
        self.path = path


class LeakedTensorError(ValueError):
    """`model_fn` used a tensor that is not of this call."""

    def __init__(self) -> None:
        super().__init__(
            "A tensor was used that leaked from an earlier call of model_fn, "
            "or from an inner function. Expected only tensors made from the "
            "features, labels and variables of this call: keep no tensors in "
            "globals, attributes or default arguments."
        )


class VariableScope(keras.StatelessScope):
    """Answers for every variable by path while a function is traced.

    Args:
        known: The program's variables by path.
        values: A traced value for each path that has one already.
        objects: Variable objects of an earlier trace that stand for their
            paths in this one.
    """

    def __init__(
        self,
        known: Mapping[str, keras.Variable],
        values: Mapping[str, Any],
        objects: Mapping[str, keras.Variable],
    ):
        super().__init__(collect_losses=True, initialize_variables=False)
        self.known = known
        self.values = dict(values)
        self.objects = dict(objects)
        self.new: dict[str, keras.Variable] = {}
        self.initials: dict[str, Any] = {}
        self.updated: set[str] = set()
        self.initializers: dict[str, Callable[..., Any]] = {}

    def __enter__(self) -> "VariableScope":
        self._token = _active.set(self)
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        _active.reset(self._token)
        super().__exit__(*exception)

    def created(
        self, variable: keras.Variable, initializer: Callable[..., Any]
    ) -> None:
        """Enters a variable that the traced function has just made."""
        path = variable.path
        if path in self.objects:
            raise TwoUnderOnePathError(path)
        self._enter(path, variable)
        self.initializers[path] = initializer

    def path_of(self, variable: keras.Variable) -> str:
        """The path of a variable, which is adopted if it is from outside."""
        path = variable.path
        if path not in self.objects:
            self._enter(path, variable)
        elif self.objects[path] is not variable:
            raise TwoUnderOnePathError(path)
        return path

    def get_current_value(self, variable: keras.Variable) -> Any:
        """The traced value of a variable. Keras calls this on every read."""
        path = self.path_of(variable)
        if path not in self.values:
            self._introduce(path)
        return self.values[path]

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Takes a new value. Keras calls this on every assignment."""
        variable, value = update
        # The old value first, so that the variable becomes an argument.
        self.get_current_value(variable)
        self.values[variable.path] = value
        self.updated.add(variable.path)

    def introduce_unread(self) -> None:
        """Makes arguments of new variables that nothing has read."""
        for path in self.new:
            if path not in self.values:
                self._introduce(path)
            elif path not in self.initials:
                self.initials[path] = self._initial(path)

    def trainable(self) -> list[keras.Variable]:
        """The trainable variables seen so far, in the order of creation."""
        return [v for v in self.objects.values() if v.trainable]

    def _enter(self, path: str, variable: keras.Variable) -> None:
        self.objects[path] = variable
        if path not in self.known:
            self.new[path] = variable
        elif tuple(self.known[path].shape) != tuple(variable.shape):
            raise ValueError(
                f"The variable {path!r} has shape {tuple(variable.shape)} in "
                "this call of model_fn, but "
                f"{tuple(self.known[path].shape)} in the calls before. Give "
                "the layer the same size in every mode, or another `name`."
            )

    def _introduce(self, path: str) -> None:
        self.initials[path] = self._initial(path)
        self.values[path] = checkpoint_name(self.initials[path], _MARK + path)

    def _initial(self, path: str) -> jax.Array:
        variable = self.objects[path]
        dtype = keras_internals.stored_dtype(variable)
        if path not in self.initializers:
            # Adopted: its own value is the initial one, read after the trace.
            return jnp.zeros(variable.shape, dtype)
        initial = self.initializers[path](variable.shape, dtype=dtype)
        return jnp.asarray(initial, dtype)


def current_scope() -> VariableScope | None:
    """The scope of the trace that is running on this thread, if one is."""
    return _active.get()


@dataclasses.dataclass(frozen=True)
class Captured:
    """A function as a pure one, with its variables as arguments.

    Attributes:
        paths: Paths of the variables it uses, in the order of its arguments.
        objects: The variable object of each path seen in the trace.
        new: Those of them that the program did not know before.
    """

    paths: tuple[str, ...]
    objects: Mapping[str, keras.Variable]
    new: Mapping[str, keras.Variable]
    _pure: jex.ClosedJaxpr
    _outputs: Any
    _initial: jex.ClosedJaxpr
    _initial_paths: tuple[str, ...]
    _known: Mapping[str, jax.ShapeDtypeStruct]

    def __call__(
        self, values: Mapping[str, Any], *args: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Evaluates the function on these values of its variables.

        Returns:
            What the function returned, and the variables it assigned by path.
        """
        flat = jex.jaxpr_as_fun(self._pure)(
            *(values[path] for path in self.paths), *jax.tree.leaves(args)
        )
        return jax.tree.unflatten(self._outputs, flat)

    def initial_values(
        self, paths: Collection[str], values: Mapping[str, Any], *args: Any
    ) -> dict[str, Any]:
        """The initial values of some of `new`.

        Args:
            paths: Their paths.
            values: Values by path of variables known before; those that the
                initial values do not depend on may be left out.
            *args: The function's arguments.
        """
        made = [path for path in self._initial_paths if path in paths]
        chosen = [self._initial_paths.index(path) for path in made]

        known = [
            values[path] if path in values else jnp.zeros(v.shape, v.dtype)
            for path, v in self._known.items()
        ]
        initial = _only(self._initial, chosen, with_effects=False)
        flat = jax.jit(jex.jaxpr_as_fun(initial))(
            *known, *jax.tree.leaves(args)
        )
        computed = dict(zip(made, flat, strict=True))
        # What is not made here was adopted, and has a value already.
        return {
            path: computed[path] if path in computed else variable.value
            for path, variable in self.new.items()
            if path in paths
        }


def capture(
    function: Callable[..., Any],
    known: Mapping[str, keras.Variable],
    *args: Any,
    objects: Mapping[str, keras.Variable] | None = None,
    axis_sizes: Sequence[tuple[str, int]] = (),
    seed: int | None = None,
    taken_names: dict[str, int] | None = None,
) -> Captured:
    """Runs a function once and returns it as a pure function of variables.

    Args:
        function: Takes `args` and returns a nest of tensors. It may create,
            read and assign Keras variables.
        known: The program's variables by path.
        *args: Nests of arrays, or of anything with a shape and a dtype.
        objects: Variable objects of an earlier capture that this function
            uses, by path. Defaults to none.
        axis_sizes: Names and sizes of the mesh axes it may reduce over.
        seed: Seeds the initializers that have no seed of their own. By
            default Python's `random` decides, as everywhere in Keras.
        taken_names: How many of some automatic names belong to layers made
            outside the function. Names found to be taken are added.

    Returns:
        A `Captured`.

    Raises:
        TwoUnderOnePathError: Two variables have one path.
        LeakedTensorError: The function uses tensors that are not its own.
    """
    keras_internals.around_creation(_enter_into_scope)
    inputs: dict[str, keras.Variable] = dict(known)
    taken = {} if taken_names is None else taken_names

    def in_scope(scope: VariableScope, args: tuple[Any, ...]) -> Any:
        with keras_internals.fresh_names(taken), _seeded(seed), scope:
            result = function(*args)
            scope.introduce_unread()
        return result

    while True:
        try:
            attempt = _attempt(
                in_scope, inputs, known, args, objects or {}, axis_sizes
            )
        except TwoUnderOnePathError as error:
            # Perhaps with a layer from outside, named by the same count.
            if not _take_name(error.path.split("/")[0], taken):
                raise
            continue
        if isinstance(attempt, Captured):
            return attempt
        # A layer was built inside an inner trace (a remat, a cond). Its
        # variables are known by now: the next attempt has them as arguments.
        inputs.update(attempt)


def _take_name(name: str, taken: dict[str, int]) -> bool:
    """Marks an automatic name as taken; whether that is news."""
    base, _, count = name.rpartition("_")
    if not (base and count.isdigit()):
        base, count = name, "0"
    if taken.get(base, 0) > int(count):
        return False
    taken[base] = int(count) + 1
    return True


def _attempt(
    in_scope: Callable[[VariableScope, tuple[Any, ...]], Any],
    inputs: Mapping[str, keras.Variable],
    known: Mapping[str, keras.Variable],
    args: tuple[Any, ...],
    objects: Mapping[str, keras.Variable],
    axis_sizes: Sequence[tuple[str, int]],
) -> Captured | Mapping[str, keras.Variable]:
    """Traces once; returns variables to be made arguments if it must again."""
    scopes: list[VariableScope] = []

    def run(values: Mapping[str, Any], args: tuple[Any, ...]) -> Any:
        scope = VariableScope(known, values, objects)
        scopes.append(scope)
        result = in_scope(scope, args)
        updates = {path: scope.values[path] for path in sorted(scope.updated)}
        return result, updates, _made_here(scope)

    # In the order in which a dictionary's keys are flattened.
    avals = {
        path: jax.ShapeDtypeStruct(
            inputs[path].shape, keras_internals.stored_dtype(inputs[path])
        )
        for path in sorted(inputs)
    }
    try:
        traced, outputs = jax.make_jaxpr(
            run, axis_env=list(axis_sizes), return_shape=True
        )(avals, args)
        leaked = any(isinstance(c, jax.core.Tracer) for c in traced.consts)
    except jax.errors.UnexpectedTracerError:
        leaked = True
    scope = scopes[-1]
    fresh = [path for path in scope.new if path not in inputs]
    if leaked:
        if not fresh:
            raise LeakedTensorError
        return scope.new
    marks = _marked_equations(traced)
    if any(path not in marks for path in fresh):
        return scope.new
    results, initials = outputs[:2], outputs[2]
    count = len(jax.tree.leaves(results))
    pure = _with_arguments(
        _only(traced, range(count)), len(avals), [marks[p] for p in fresh]
    )
    paths, pure = _without_unused((*avals, *fresh), pure)
    return Captured(
        paths=paths,
        objects=scope.objects,
        new=scope.new,
        _pure=pure,
        _outputs=jax.tree.structure(results),
        _initial=_only(
            traced, range(count, count + len(initials)), with_effects=False
        ),
        _initial_paths=tuple(sorted(initials)),
        _known=avals,
    )


def _marked_equations(traced: jex.ClosedJaxpr) -> dict[str, Any]:
    """The equations that introduced a variable on the outermost level."""
    return {
        equation.params["name"].removeprefix(_MARK): equation
        for equation in traced.jaxpr.eqns
        if str(equation.params.get("name", "")).startswith(_MARK)
    }


def _only(
    traced: jex.ClosedJaxpr, outputs: Iterable[int], with_effects: bool = True
) -> jex.ClosedJaxpr:
    """The part of a trace that some of its outputs are computed by."""
    jaxpr = traced.jaxpr
    outvars = [jaxpr.outvars[index] for index in outputs]
    needed = {id(v) for v in outvars}
    equations = []
    for equation in reversed(jaxpr.eqns):
        kept = with_effects and equation.effects
        if kept or any(id(v) in needed for v in equation.outvars):
            equations.append(equation)
            needed.update(id(v) for v in equation.invars)
    return jex.ClosedJaxpr(
        jaxpr.replace(
            outvars=outvars,
            eqns=equations[::-1],
            effects=set().union(*(e.effects for e in equations)),
            debug_info=jaxpr.debug_info.with_unknown_names(),
        ),
        traced.consts,
    )


def _with_arguments(
    traced: jex.ClosedJaxpr, position: int, equations: list[Any]
) -> jex.ClosedJaxpr:
    """Turns the results of some equations into arguments."""
    jaxpr = traced.jaxpr
    skipped = {id(equation) for equation in equations}
    invars = list(jaxpr.invars)
    invars[position:position] = [e.outvars[0] for e in equations]
    kept = [e for e in jaxpr.eqns if id(e) not in skipped]
    return jex.ClosedJaxpr(
        jaxpr.replace(invars=invars, eqns=kept), traced.consts
    )


def _without_unused(
    paths: tuple[str, ...], pure: jex.ClosedJaxpr
) -> tuple[tuple[str, ...], jex.ClosedJaxpr]:
    """Drops arguments for variables that the function does not use."""
    jaxpr = pure.jaxpr
    used = {id(v) for e in jaxpr.eqns for v in e.invars}
    used.update(id(v) for v in jaxpr.outvars)
    count = len(paths)
    kept = [
        (path, var)
        for path, var in zip(paths, jaxpr.invars, strict=False)
        if id(var) in used
    ]
    invars = [*(var for _, var in kept), *jaxpr.invars[count:]]
    return tuple(path for path, _ in kept), jex.ClosedJaxpr(
        jaxpr.replace(invars=invars), pure.consts
    )


def _made_here(scope: VariableScope) -> dict[str, Any]:
    return {
        path: scope.initials[path]
        for path in sorted(scope.new)
        if path in scope.initializers
    }


def _enter_into_scope(
    construct: Callable[..., None],
    variable: keras.Variable,
    initializer: Any,
    kwargs: dict[str, Any],
) -> None:
    """Constructs a variable; inside a scope, any initial value will do."""
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


def _constant(value: Any, kwargs: dict[str, Any]) -> Callable[..., Any]:
    """An initializer that returns a value, whose shape and dtype it adds."""
    if isinstance(value, keras.Variable):
        value = value.value
    if not isinstance(value, jax.Array):
        value = np.asarray(value)
        if kwargs.get("dtype") is None and value.dtype == np.float64:
            value = value.astype(keras.config.floatx())
    kwargs["shape"] = value.shape
    if kwargs.get("dtype") is None:
        kwargs["dtype"] = keras.backend.standardize_dtype(value.dtype)
    return lambda shape, dtype=None: jnp.asarray(value, dtype)


@contextlib.contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Seeds Python's `random`, from which Keras draws default seeds."""
    if seed is None:
        yield
        return
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
