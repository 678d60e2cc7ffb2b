"""A function that makes and uses variables, as a pure function of these variables.

`capture` runs the function once under a `VariableScope` and records the trace: the
variables that it reads become arguments, and those that it assigns become results.
"""

import contextlib
import dataclasses
import itertools
import random
from collections.abc import Callable, Collection, Mapping, Sequence

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.extend import core as jex

from keras_tpu_estimator.base.common.types import PyTree, TensorLike
from keras_tpu_estimator.base.tracing import foreign_calls, jaxprs
from keras_tpu_estimator.base.tracing.analyses import (
    Crossing,
    FixedWeight,
    connected,
    crossings,
    fixed_weights,
    varying,
)
from keras_tpu_estimator.base.tracing.array_trees import names_in_layers
from keras_tpu_estimator.base.tracing.gathering import Shards, gathering
from keras_tpu_estimator.base.tracing.jaxprs import (
    UserPlace,
    place_of,
    place_of_error,
)
from keras_tpu_estimator.base.tracing.parts import evaluate_by_parts
from keras_tpu_estimator.base.tracing.rematerialization import rematerialized
from keras_tpu_estimator.base.tracing.variables import (
    AnyArraysByPath,
    ArraysByPath,
    LeakedTensorError,
    TwoUnderOnePathError,
    VariableScope,
)
from keras_tpu_estimator.base.upstream import (
    keras_layers,
    keras_random,
    keras_state,
    keras_variables,
)

# The function is traced again for each.
_MOST_CLASHES = 100


@dataclasses.dataclass(frozen=True)
class _Gathering:
    """The variables that a function may have to gather, by path, as in `gathering`."""

    shards: Mapping[str, Shards]
    remat: str | None
    axis_sizes: tuple[tuple[str, int], ...]

    def function_of(
        self, pure: jex.ClosedJaxpr, paths: Sequence[str], values: Sequence[jax.Array]
    ) -> Callable[..., list[jax.Array]]:
        """Returns the function of these values, some of which are shards."""
        sharded = {
            number: self.shards[path]
            for number, (path, value) in enumerate(zip(paths, values, strict=True))
            if path in self.shards and value.shape != pure.in_avals[number].shape
        }
        return gathering(pure, len(paths), sharded, self.remat, self.axis_sizes)


@dataclasses.dataclass(frozen=True)
class Captured:
    """A pure function whose variables are arguments and, if assigned, results, so that
    JAX can transform a function that reads and assigns Keras variables.

    Attributes:
        paths: Paths of the variables that it uses, in the order of its arguments.
        objects: The variable object of each path in the trace.
        new: The variables that the program did not know before.
    """

    paths: tuple[str, ...]
    objects: Mapping[str, keras.Variable]
    new: Mapping[str, keras.Variable]
    _pure: jex.ClosedJaxpr
    _outputs: jax.tree_util.PyTreeDef
    _initial: jex.ClosedJaxpr
    _initial_paths: tuple[str, ...]
    _argument_shapes: Mapping[str, jax.ShapeDtypeStruct]
    _gathering: "_Gathering | None" = None

    def __call__(
        self, values: Mapping[str, jax.Array], *args: PyTree
    ) -> tuple[PyTree, ArraysByPath]:
        """Evaluates the function; also returns the assigned variables by path."""
        inputs = [values[path] for path in self.paths]
        evaluate = jex.jaxpr_as_fun(self._pure)
        if self._gathering is not None:
            evaluate = self._gathering.function_of(self._pure, self.paths, inputs)
        flat = evaluate(*inputs, *jax.tree.leaves(args))
        return jax.tree.unflatten(self._outputs, flat)

    @property
    def assigned(self) -> tuple[str, ...]:
        """Paths of the assigned variables."""
        numbers = range(self._outputs.num_leaves)
        return tuple(jax.tree.unflatten(self._outputs, numbers)[1])

    def behind_result(self) -> tuple[frozenset[str], list[bool]]:
        """Returns the variables by which the result has gradients, and for each leaf of
        the arguments whether it has.
        """
        result, _ = jax.tree.unflatten(self._outputs, connected(self._pure))
        behind = frozenset[int]().union(*jax.tree.leaves(result))
        used = [n in behind for n in range(len(self._pure.jaxpr.invars))]
        paths = itertools.compress(self.paths, used)
        return frozenset(paths), used[len(self.paths) :]

    @property
    def callbacks(self) -> list[str]:
        """The primitives that call Python, such as "pure_callback"."""
        return jaxprs.callbacks(self._pure)

    def varying(
        self, paths: Collection[str], axes: Sequence[str]
    ) -> tuple[PyTree, dict[str, bool]]:
        """Returns which results may differ between cores if these variables do."""
        may_differ = [path in paths for path in self.paths]
        argument_count = len(self._pure.jaxpr.invars) - len(may_differ)
        flat = varying(self._pure, may_differ + [True] * argument_count, axes)
        return jax.tree.unflatten(self._outputs, flat)

    @property
    def fixed_weights(self) -> list[FixedWeight]:
        """The weights that it contains as constants."""
        return fixed_weights(self._pure)

    def crossings(self, labels: Sequence[bool]) -> list[Crossing]:
        """Returns the operations that broadcast labels against other values."""
        return crossings(self._pure, [False] * len(self.paths) + [*labels])

    def rematerialized(
        self, mode: str, axis_sizes: Sequence[tuple[str, int]]
    ) -> "Captured":
        """Returns the same function, recomputed for gradients in a mode."""
        pure = rematerialized(self._pure, mode, axis_sizes)
        return dataclasses.replace(self, _pure=pure)

    def gathering(
        self,
        shards: Mapping[str, Shards],
        remat: str | None,
        axis_sizes: Sequence[tuple[str, int]],
    ) -> "Captured":
        """Returns the function that also takes shards by path; see `gathering`."""
        if not shards:
            return self if remat is None else self.rematerialized(remat, axis_sizes)
        gathers = _Gathering(shards, remat, tuple(axis_sizes))
        return dataclasses.replace(self, _gathering=gathers)

    @property
    def initial_inputs(self) -> tuple[int, ...]:
        """The leaves of the arguments that its initial values depend on."""
        names, _ = jaxprs.without_unused(self._initial_names, self._initial)
        return tuple(name for name in names if isinstance(name, int))

    def initial_values(
        self,
        paths: Collection[str],
        values: AnyArraysByPath,
        inputs: Mapping[int, np.ndarray],
        shardings: Mapping[str, jax.sharding.Sharding] | None = None,
    ) -> ArraysByPath:
        """Returns the initial values of some new variables.

        Args:
            values: Values by path of variables that were known before, and of new ones
                with other initial values. Variables that the initial values do not
                depend on may be missing.
            inputs: Leaves of the function's arguments by number, including
                `initial_inputs`.
            shardings: The sharding of each value. Defaults to one device.
        """
        computed_paths = [path for path in self._initial_paths if path in paths]
        numbers = [self._initial_paths.index(path) for path in computed_paths]
        initial = jaxprs.only(self._initial, numbers, with_effects=False)
        marked = jaxprs.marked_equations(initial)
        available = [p for p in marked if p in self.new and p in values]
        initial = jaxprs.with_arguments(
            initial, len(self._argument_shapes), [marked[path] for path in available]
        )
        count = len(self._argument_shapes)
        names = self._initial_names
        used, initial = jaxprs.without_unused(
            (*names[:count], *available, *names[count:]), initial
        )

        def argument(name: str | int) -> TensorLike:
            if isinstance(name, int):
                return inputs[name]
            if name in values:
                return values[name]
            return np.zeros(
                self._argument_shapes[name].shape, self._argument_shapes[name].dtype
            )

        at = None if shardings is None else [shardings[path] for path in computed_paths]
        flat = evaluate_by_parts(initial, [*map(argument, used)], at)
        computed = dict(zip(computed_paths, flat, strict=True))
        return {
            path: computed[path] if path in computed else self._adopted(path)
            for path in self.new
            if path in paths
        }

    def _adopted(self, path: str) -> jax.Array:
        """Returns the value of a variable from outside the function."""
        value: jax.Array = self.objects[path].value
        if self.new[path] is self.objects[path]:
            return value
        # Training donates the array, and the outside variable keeps its own.
        return jnp.array(value)

    @property
    def _initial_names(self) -> tuple[str | int, ...]:
        """Paths and numbers of inputs, as arguments of the initial values."""
        inputs = len(self._initial.jaxpr.invars) - len(self._argument_shapes)
        return (*self._argument_shapes, *range(inputs))


def capture(
    function: Callable[..., PyTree],
    variables: Mapping[str, keras.Variable],
    *args: PyTree,
    objects: Mapping[str, keras.Variable] | None = None,
    axis_sizes: Sequence[tuple[str, int]] = (),
    seed: int | None = None,
    taken_names: dict[str, int] | None = None,
) -> Captured:
    """Runs a function once and returns it as a pure function of variables.

    The function may create, read and assign Keras variables. Two variables under one
    path, and tensors of another trace, are errors.

    Args:
        variables: The program's variables by path.
        *args: Pytrees of arrays, or of values with a shape and a dtype.
        objects: Variable objects of an earlier capture that this function uses, by
            path.
        axis_sizes: Names and sizes of the mesh axes that it may reduce over.
        seed: The seed of initializers without one. Defaults to Python's `random`, as
            elsewhere in Keras.
        taken_names: The number of automatic names that belong to layers from outside.
            Further taken names are added.
    """
    inputs: dict[str, keras.Variable] = dict(variables)
    taken_counts = {} if taken_names is None else taken_names
    clashes: list[TwoUnderOnePathError] = []

    def in_scope(scope: VariableScope, args: tuple[PyTree, ...]) -> PyTree:
        with (
            keras_state.fresh_names(taken_counts),
            keras_state.without_distribution(),
            keras_layers.masks_kept(),
            keras_layers.jax_functions_traced(names_in_layers),
            _seeded(seed),
            scope,
        ):
            result = function(*args)
            scope.introduce_unread()
        return result

    while True:
        could_be_seen = foreign_calls.are_detectable()
        try:
            attempt = _attempt(
                in_scope, inputs, variables, args, objects or {}, axis_sizes
            )
        except TwoUnderOnePathError as error:
            # A layer from outside may have the same automatic name. Two variables
            # of one layer clash under any name.
            clashes.append(error)
            is_news = _take_name(error.path.split("/")[0], taken_counts)
            if not is_news or len(clashes) > _MOST_CLASHES:
                raise clashes[0] from None
            continue
        if foreign_calls.are_detectable() and not could_be_seen:
            continue  # The function has imported TensorFlow.
        if isinstance(attempt, Captured):
            return attempt
        # A layer was built inside an inner trace (a remat, a cond). Its
        # variables are now known, and become arguments of the next attempt.
        inputs.update(attempt)


def _take_name(name: str, counts: dict[str, int]) -> bool:
    """Marks an automatic name as taken, and returns whether it was free."""
    base, _, count = name.rpartition("_")
    if not (base and count.isdigit()):
        base, count = name, "0"
    if counts.get(base, 0) > int(count):
        return False
    counts[base] = int(count) + 1
    return True


def _attempt(
    in_scope: Callable[[VariableScope, tuple[PyTree, ...]], PyTree],
    inputs: Mapping[str, keras.Variable],
    variables: Mapping[str, keras.Variable],
    args: tuple[PyTree, ...],
    objects: Mapping[str, keras.Variable],
    axis_sizes: Sequence[tuple[str, int]],
) -> Captured | Mapping[str, keras.Variable]:
    """Traces once; returns variables that must become arguments of a new trace."""
    scopes: list[VariableScope] = []

    def run(values: Mapping[str, jax.Array], args: tuple[PyTree, ...]) -> PyTree:
        scope = VariableScope(variables, values, objects)
        scopes.append(scope)
        result = in_scope(scope, args)
        updates = {path: scope.values[path] for path in sorted(scope.updated)}
        return result, updates, _made_here(scope)

    # Sorted, as JAX flattens the keys of a dict.
    avals = {
        path: jax.ShapeDtypeStruct(
            inputs[path].shape, keras_variables.stored_dtype(inputs[path])
        )
        for path in sorted(inputs)
    }
    try:
        traced, outputs = jax.make_jaxpr(
            run, axis_env=list(axis_sizes), return_shape=True
        )(avals, args)
        leak = _leak(traced)
    except jax.errors.UnexpectedTracerError as error:
        leak = LeakedTensorError(_shown(place_of_error(error)))
    scope = scopes[-1]
    fresh = [path for path in scope.new if path not in inputs]
    if leak is not None:
        if not fresh:
            raise leak
        return scope.new
    marks = jaxprs.marked_equations(traced)
    # A new variable without an outermost mark was made in an inner function.
    if any(path not in marks for path in fresh):
        return scope.new
    results, initials = outputs[:2], outputs[2]
    count = len(jax.tree.leaves(results))
    pure = jaxprs.with_arguments(
        jaxprs.only(traced, range(count)), len(avals), [marks[p] for p in fresh]
    )
    paths, pure = jaxprs.without_unused((*avals, *fresh), pure)
    return Captured(
        paths=paths,
        objects=scope.objects,
        new=scope.new,
        _pure=pure,
        _outputs=jax.tree.structure(results),
        _initial=jaxprs.only(
            traced, range(count, count + len(initials)), with_effects=False
        ),
        _initial_paths=tuple(sorted(initials)),
        _argument_shapes=avals,
    )


def _leak(traced: jex.ClosedJaxpr) -> LeakedTensorError | None:
    """Returns the error of a trace that uses a tensor of another trace."""
    leaked = {
        variable: value
        for variable, value in zip(traced.jaxpr.constvars, traced.consts, strict=True)
        if isinstance(value, jax.core.Tracer)
    }
    for equation in traced.jaxpr.eqns if leaked else ():
        for atom in equation.invars:
            if not isinstance(atom, jex.Literal) and atom in leaked:
                # An argument of the other trace has no parent equation.
                maker = getattr(leaked[atom], "parent", None)
                return LeakedTensorError(
                    _shown(place_of(equation.source_info)),
                    _shown(place_of(getattr(maker, "source_info", None))),
                )
    return LeakedTensorError() if leaked else None


def _shown(user_place: UserPlace | None) -> str | None:
    return None if user_place is None else str(user_place)


def _made_here(scope: VariableScope) -> ArraysByPath:
    return {
        path: scope.initials[path]
        for path in sorted(scope.new)
        if path in scope.initializers
    }


def _seeded(seed: int | None) -> contextlib.AbstractContextManager[None]:
    """Makes Keras's default seeds reproducible if a seed is given."""
    if seed is None:
        return contextlib.nullcontext()
    return keras_random.default_seeds(random.Random(seed))
