"""Traced functions of variables that are sharded over the replicas.

A variable is gathered where the function reads it, and gathered again for its gradient.
The function is split into pieces, each of which begins with a read, so that only the
variables of a few adjacent operations are complete at a time.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.extend import core as jex

from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.tracing import rematerialization
from keras_tpu_estimator.base.tracing.rematerialization import (
    OfVariables,
    reading_again,
)

_JITTED = ("jit", "pjit")


class Shards(Protocol):
    """The shards of a variable."""

    def gather(
        self, shard: jax.Array, dtype: jax.typing.DTypeLike | None = None
    ) -> jax.Array:
        """Gathers the variable, in a dtype in which it is used."""


def gathering(
    traced: jex.ClosedJaxpr,
    variables: int,
    shards: Mapping[int, Shards],
    remat: str | None = None,
    axis_sizes: Sequence[tuple[str, int]] = (),
) -> Callable[..., list[jax.Array]]:
    """Returns the same function, of shards of some arguments.

    Args:
        variables: The number of arguments that are variables, the first ones.
        shards: The sharded arguments by number.
        remat: The mode of `rematerialized`, or `None` to keep all that gradients need,
            except what depends only on variables.
        axis_sizes: Names and sizes of the mesh axes it may reduce over.
    """
    traced = _inlined(traced, shards, axis_sizes)
    jaxpr = traced.jaxpr
    named = {jaxpr.invars[number]: shard for number, shard in shards.items()}
    steps = [
        _differentiated(piece, named, remat)
        for piece in _pieces(jaxpr, jaxpr.invars[:variables], named, remat)
    ]

    def evaluate(*args: jax.Array) -> list[jax.Array]:
        computed = dict(zip(jaxpr.constvars, traced.consts, strict=True))
        computed.update(zip(jaxpr.invars, args, strict=True))
        for step in steps:
            step(computed)
        return [rematerialization.value_of(v, computed) for v in jaxpr.outvars]

    return evaluate


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Adjacent operations, with a copy of the operations on variables that they need,
    so that no result of these stays in memory for a later piece.

    Attributes:
        function: All of these operations.
        variables: The arguments that are variables.
        inputs: The other arguments.
        writes: The results.
    """

    function: jex.ClosedJaxpr
    variables: tuple[jex.Var, ...]
    inputs: tuple[jex.Var, ...]
    writes: tuple[jex.Var, ...]


def _pieces(
    jaxpr: jex.Jaxpr,
    variables: Sequence[jex.Var],
    shards: Mapping[jex.Var, Shards],
    remat: str | None,
) -> list[_Piece]:
    """Splits a function into pieces, each with its reads of variables."""
    of_variables, of_shards = _of_variables(jaxpr, variables, shards)
    made_by = {v: e for e in of_variables for v in e.outvars}
    skipped = {id(e) for e in of_variables if of_shards & {*e.outvars}}
    remaining = jaxpr.replace(eqns=[e for e in jaxpr.eqns if id(e) not in skipped])
    groups = (
        rematerialization.groups(remaining)
        if remat == "full"
        else list(_groups(remaining, of_shards))
    )
    needed = rematerialization.variables_of(jaxpr.outvars)
    # A last piece returns what depends only on variables.
    groups.append([])
    ends = {v for v in needed if v in of_shards}
    pieces = []
    # From the last piece back, because a piece writes what later ones read.
    for equations in reversed(groups):
        results = {v for e in equations for v in e.outvars}
        writes = tuple(
            v for v in needed if v in results or (not equations and v in ends)
        )
        used = rematerialization.variables_of(
            [*_arguments(equations), *(v for v in writes if v in ends)]
        )
        before = _needed(of_variables, made_by, [v for v in used if v in of_shards])
        inner = {v for e in before for v in e.outvars} | results
        reads = tuple(
            v
            for v in rematerialization.variables_of([*_arguments(before), *used])
            if v not in inner
        )
        if equations or writes:
            first = {*shards, *_arguments(before)}
            function = rematerialization.part_of(
                jaxpr, [*before, *equations], reads, writes
            )
            pieces.append(
                _Piece(
                    function,
                    tuple(v for v in reads if v in first),
                    tuple(v for v in reads if v not in first),
                    writes,
                )
            )
        needed = {
            v: None
            for v in (*needed, *reads)
            if v not in results and v not in of_shards - {*shards}
        }
    return pieces[::-1]


def _arguments(equations: Sequence[jex.JaxprEqn]) -> dict[jex.Var, None]:
    return rematerialization.variables_of(v for e in equations for v in e.invars)


def _of_variables(
    jaxpr: jex.Jaxpr, variables: Sequence[jex.Var], shards: Collection[jex.Var]
) -> tuple[list[jex.JaxprEqn], set[jex.Var]]:
    """Returns the operations that depend only on variables.

    Random numbers also depend on a variable, their seed, but are not drawn twice. Also
    returns the sharded variables, with the results of operations that depend on them.
    """
    computable = {v for v in variables if jnp.issubdtype(_dtype(v), jnp.inexact)}
    computable |= {*shards}
    sharded = {*shards}
    equations = []
    for equation in jaxpr.eqns:
        used = {*rematerialization.variables_of(equation.invars)}
        if used and used <= computable and not equation.effects:
            equations.append(equation)
            computable.update(equation.outvars)
            if used & sharded:
                sharded.update(equation.outvars)
    return equations, sharded


def _groups(
    jaxpr: jex.Jaxpr, of_shards: Collection[jex.Var]
) -> Iterator[Sequence[jex.JaxprEqn]]:
    """Splits before each operation that reads another variable."""
    group: list[jex.JaxprEqn] = []
    group_reads: set[jex.Var] = set()
    for equation in jaxpr.eqns:
        reads = {
            v for v in rematerialization.variables_of(equation.invars) if v in of_shards
        }
        if group and (equation.effects or group[-1].effects or reads - group_reads):
            yield group
            group, group_reads = [], set()
        group.append(equation)
        group_reads |= reads
    if group:
        yield group


def _needed(
    equations: Sequence[jex.JaxprEqn],
    made_by: Mapping[jex.Var, jex.JaxprEqn],
    results: Sequence[jex.Var],
) -> list[jex.JaxprEqn]:
    """Returns those of some operations that make the wanted results."""
    stack, makers = [*results], set()
    while stack:
        equation = made_by.get(stack.pop())
        if equation is not None and id(equation) not in makers:
            makers.add(id(equation))
            stack += rematerialization.variables_of(equation.invars)
    return [e for e in equations if id(e) in makers]


def _differentiated(
    piece: _Piece, shards: Mapping[jex.Var, Shards], remat: str | None
) -> Callable[[dict[jex.Var, Any]], None]:
    """Returns a function that evaluates a piece, given all values so far."""
    order = [*piece.variables, *piece.inputs]
    position = {v: number for number, v in enumerate(order)}
    dtypes = {v: _used_in(v, piece.function.jaxpr) for v in order if v in shards}

    def run(variables: Sequence[jax.Array], inputs: Sequence[jax.Array]) -> PyTree:
        values = [*variables, *inputs]
        for v, dtype in dtypes.items():
            values[position[v]] = shards[v].gather(values[position[v]], dtype)
        args = [values[position[v]] for v in piece.function.jaxpr.invars]
        return jex.jaxpr_as_fun(piece.function)(*args)

    function: OfVariables = run
    if remat is not None and not piece.function.effects:
        function = rematerialization.checkpointed(run, remat)
    elif dtypes and not piece.function.effects:
        function = reading_again(run)

    def step(computed: dict[jex.Var, Any]) -> None:
        results = function(
            [computed[v] for v in piece.variables], [computed[v] for v in piece.inputs]
        )
        computed.update(zip(piece.writes, results, strict=True))

    return step


def _dtype(variable: Any) -> Any:
    return variable.aval.dtype


def _used_in(variable: jex.Var, jaxpr: jex.Jaxpr) -> jax.typing.DTypeLike | None:
    """Returns the narrower dtype to which each use converts a variable."""
    uses = [
        e for e in jaxpr.eqns if variable in rematerialization.variables_of(e.invars)
    ]
    dtypes = {
        e.params["new_dtype"] if e.primitive.name == "convert_element_type" else None
        for e in uses
    }
    if len(dtypes) != 1 or variable in rematerialization.variables_of(jaxpr.outvars):
        return None
    (dtype,) = dtypes
    stored = _dtype(variable)
    is_float = dtype is not None and jnp.issubdtype(dtype, jnp.floating)
    if not is_float or not jnp.issubdtype(stored, jnp.floating):
        return None
    return dtype if jnp.dtype(dtype).itemsize < stored.itemsize else None


def _inlined(
    traced: jex.ClosedJaxpr,
    shards: Collection[int],
    axis_sizes: Sequence[tuple[str, int]],
) -> jex.ClosedJaxpr:
    """Returns the same function without jitted functions that read variables."""
    sharded = [number in shards for number in range(len(traced.jaxpr.invars))]
    if not any(_reading(traced.jaxpr, sharded)):
        return traced

    def run(*args: jax.Array) -> list[jax.Array]:
        return _evaluated(traced, args, sharded)

    return jax.make_jaxpr(run, axis_env=list(axis_sizes))(*traced.in_avals)


def _evaluated(
    traced: jex.ClosedJaxpr, args: Sequence[jax.Array], sharded: Sequence[bool]
) -> list[jax.Array]:
    jaxpr = traced.jaxpr
    computed = dict(zip(jaxpr.constvars, traced.consts, strict=True))
    computed.update(zip(jaxpr.invars, args, strict=True))
    reading = _reading(jaxpr, sharded)
    of_shards = _of_shards(jaxpr, sharded)
    for equation, reads in zip(jaxpr.eqns, reading, strict=True):
        if reads:
            values = [rematerialization.value_of(v, computed) for v in equation.invars]
            inner = [
                not isinstance(v, jex.Literal) and v in of_shards
                for v in equation.invars
            ]
            results = _evaluated(equation.params["jaxpr"], values, inner)
        else:
            used = [*rematerialization.variables_of(equation.invars)]
            one = rematerialization.part_of(jaxpr, [equation], used, equation.outvars)
            results = jex.jaxpr_as_fun(one)(*(computed[v] for v in used))
        computed.update(zip(equation.outvars, results, strict=True))
    return [rematerialization.value_of(v, computed) for v in jaxpr.outvars]


def _reading(jaxpr: jex.Jaxpr, sharded: Sequence[bool]) -> list[bool]:
    """Returns which operations are jitted functions that read variables."""
    of_shards = _of_shards(jaxpr, sharded)
    return [
        e.primitive.name in _JITTED
        and any(v in of_shards for v in rematerialization.variables_of(e.invars))
        for e in jaxpr.eqns
    ]


def _of_shards(jaxpr: jex.Jaxpr, sharded: Sequence[bool]) -> set[jex.Var]:
    """Returns sharded arguments, and what is computed from variables."""
    arguments = {
        v for v, is_sharded in zip(jaxpr.invars, sharded, strict=True) if is_sharded
    }
    return _of_variables(jaxpr, jaxpr.invars[:0], arguments)[1]
