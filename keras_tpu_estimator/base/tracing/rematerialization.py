"""Traced functions that recompute the forward pass for their gradients.

Values of the forward pass are computed a second time instead of stored: more work, less
memory.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
from jax.extend import core as jex

from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.tracing import jaxprs

_Atom = jex.Var | jex.Literal
_PRODUCTS = ("conv_general_dilated", "dot_general", "ragged_dot_general")


def rematerialized(
    traced: jex.ClosedJaxpr,
    mode: str,
    axis_sizes: Sequence[tuple[str, int]] = (),
) -> jex.ClosedJaxpr:
    """Returns the same function, whose gradient takes less memory.

    Args:
        mode: "full" to keep only the values between about sqrt(n) pieces of a function
            with n operations; or "activations" to keep the results of matrix products
            and convolutions, and recompute elementwise operations.
        axis_sizes: Names and sizes of the mesh axes that it may reduce over.
    """
    evaluate = _MODES[mode](traced)
    return jax.make_jaxpr(evaluate, axis_env=list(axis_sizes))(*traced.in_avals)


def _keeping_products(
    traced: jex.ClosedJaxpr,
) -> Callable[..., list[jax.Array]]:
    return checkpointed(jex.jaxpr_as_fun(traced), "activations")


def checkpointed(function: Callable[..., PyTree], mode: str) -> Callable[..., PyTree]:
    """Returns the same function, computed again for its gradient.

    The mode "full" keeps nothing, and "activations" keeps the results of matrix
    products and convolutions.
    """
    policy = _is_product if mode == "activations" else None
    again: Callable[..., PyTree] = jax.checkpoint(function, policy=policy)
    return again


def _is_product(primitive: jex.Primitive, *_: object, **__: object) -> bool:
    return primitive.name in _PRODUCTS


def _in_pieces(traced: jex.ClosedJaxpr) -> Callable[..., list[jax.Array]]:
    jaxpr = traced.jaxpr
    pieces = _pieces(jaxpr)

    def evaluate(*args: jax.Array) -> list[jax.Array]:
        computed = dict(zip(jaxpr.constvars, traced.consts, strict=True))
        computed.update(zip(jaxpr.invars, args, strict=True))
        for piece in pieces:
            results = piece.run(*(computed[v] for v in piece.reads))
            computed.update(zip(piece.writes, results, strict=True))
        return [value_of(v, computed) for v in jaxpr.outvars]

    return evaluate


_MODES = {"full": _in_pieces, "activations": _keeping_products}


class _Piece(NamedTuple):
    run: Callable[..., list[jax.Array]]
    reads: tuple[jex.Var, ...]
    writes: tuple[jex.Var, ...]


def _pieces(jaxpr: jex.Jaxpr) -> list[_Piece]:
    """Returns the function as a sequence of pieces, each of which is a checkpoint."""
    grouped = groups(jaxpr)
    needed = variables_of(jaxpr.outvars)
    pieces = []
    # From the last piece back, because a piece writes what later ones read.
    for equations in reversed(grouped):
        results = {v for e in equations for v in e.outvars}
        used = variables_of(v for e in equations for v in e.invars)
        writes = tuple(v for v in needed if v in results)
        reads = tuple(v for v in used if v not in results)
        pieces.append(_piece(jaxpr, equations, reads, writes))
        needed = {v: None for v in (*needed, *reads) if v not in results}
    return pieces[::-1]


def groups(jaxpr: jex.Jaxpr) -> list[Sequence[jex.JaxprEqn]]:
    """Groups neighboring operations; operations with effects form separate groups."""
    cuts = {0, *_cuts(jaxpr), len(jaxpr.eqns)}
    for position, equation in enumerate(jaxpr.eqns):
        if equation.effects:
            cuts |= {position, position + 1}
    return [jaxpr.eqns[a:b] for a, b in itertools.pairwise(sorted(cuts))]


def _cuts(jaxpr: jex.Jaxpr) -> Iterator[int]:
    """Yields positions about every sqrt(n) operations, where few bytes are alive."""
    bytes_alive = _bytes_alive(jaxpr)
    size = math.isqrt(len(jaxpr.eqns))
    cut = 0
    # The best position may be up to half a piece away, so that no piece is short.
    while len(jaxpr.eqns) - cut > 3 * size // 2:
        near = range(cut + size // 2 + 1, cut + 3 * size // 2 + 1)
        cut = min(near, key=bytes_alive.__getitem__)
        yield cut


def _bytes_alive(jaxpr: jex.Jaxpr) -> list[int]:
    """Returns for each position the bytes that were made before and are used later."""
    count = len(jaxpr.eqns)
    last_use = {}
    for position, equation in enumerate(jaxpr.eqns):
        last_use.update(dict.fromkeys(variables_of(equation.invars), position))
    last_use.update(dict.fromkeys(variables_of(jaxpr.outvars), count))
    change = [0] * (count + 1)
    for position, equation in enumerate(jaxpr.eqns):
        for variable in equation.outvars:
            size = _bytes(variable.aval)
            if variable in last_use:
                change[position + 1] += size
                change[min(last_use[variable] + 1, count)] -= size
    return list(itertools.accumulate(change))


def _bytes(aval: Any) -> int:
    # Tokens of effects have neither shape nor dtype.
    return aval.size * aval.dtype.itemsize if hasattr(aval, "dtype") else 0


def _piece(
    jaxpr: jex.Jaxpr,
    equations: Sequence[jex.JaxprEqn],
    reads: tuple[jex.Var, ...],
    writes: tuple[jex.Var, ...],
) -> _Piece:
    part = part_of(jaxpr, equations, reads, writes)
    run = jex.jaxpr_as_fun(part)
    return _Piece(run if part.effects else jax.checkpoint(run), reads, writes)


def part_of(
    jaxpr: jex.Jaxpr,
    equations: Sequence[jex.JaxprEqn],
    reads: Sequence[jex.Var],
    writes: Sequence[jex.Var],
) -> jex.ClosedJaxpr:
    """Returns a function that computes `writes` from `reads`, including constants."""
    part = jaxpr.replace(
        constvars=[],
        invars=list(reads),
        outvars=list(writes),
        eqns=list(equations),
        effects=set().union(*(e.effects for e in equations)),
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return jex.ClosedJaxpr(part, ())


def variables_of(atoms: Iterable[_Atom]) -> dict[jex.Var, None]:
    """Returns the variables among variables and literals, each once and in order."""
    return {v: None for v in atoms if not isinstance(v, jex.Literal)}


def value_of(atom: _Atom, values: Mapping[jex.Var, jax.Array]) -> jax.Array:
    return atom.val if isinstance(atom, jex.Literal) else values[atom]


# A function of variables and of other values.
OfVariables: TypeAlias = Callable[[Sequence[jax.Array], Sequence[jax.Array]], PyTree]


def reading_again(function: OfVariables) -> OfVariables:
    """Returns a function that keeps nothing of its variables for gradients.

    Intermediate values that depend only on the variables are recomputed in the backward
    pass, once the gradient of the results is known.
    """

    @jax.custom_vjp
    def again(variables: Sequence[jax.Array], inputs: Sequence[jax.Array]) -> PyTree:
        return function(variables, inputs)

    def forward(
        variables: Sequence[jax.Array], inputs: Sequence[jax.Array]
    ) -> tuple[PyTree, PyTree]:
        structure: Any = None

        def with_residuals(*args: jax.Array) -> tuple[PyTree, PyTree]:
            nonlocal structure
            arguments = [*args[: len(variables)]], [*args[len(variables) :]]
            results, pull_back = jax.vjp(function, *arguments)
            residuals, structure = jax.tree.flatten(pull_back)
            return results, residuals

        traced = jax.make_jaxpr(with_residuals)(*variables, *inputs)
        depends = _depending(traced.jaxpr, traced.jaxpr.invars[len(variables) :])
        total = len(depends)
        count = total - structure.num_leaves
        computed = [n for n in range(count, total) if not depends[n]]
        dependent = [n for n in range(count, total) if depends[n]]
        results_and_kept = jaxprs.only(traced, [*range(count), *dependent])
        flat = jex.jaxpr_as_fun(results_and_kept)(*variables, *inputs)
        compute = jex.jaxpr_as_fun(
            jaxprs.without_last_arguments(
                jaxprs.only(traced, computed, with_effects=False), len(inputs)
            )
        )

        def pull_back(
            variables: Sequence[jax.Array],
            saved: Sequence[jax.Array],
            cotangents: Sequence[Any],
        ) -> tuple[PyTree, PyTree]:
            by_number = dict(zip(dependent, saved, strict=True))
            again = compute(*_after(variables, cotangents))
            by_number.update(zip(computed, again, strict=True))
            residuals = [by_number[n] for n in range(count, total)]
            pulled: tuple[PyTree, PyTree] = jax.tree.unflatten(structure, residuals)(
                [*cotangents]
            )
            return pulled

        back = jax.tree_util.Partial(pull_back, variables, flat[count:])
        return flat[:count], back

    def backward(back: Callable[[Any], PyTree], cotangents: Sequence[Any]) -> PyTree:
        return back(cotangents)

    again.defvjp(forward, backward)
    return again


def _depending(jaxpr: jex.Jaxpr, arguments: Sequence[jex.Var]) -> list[bool]:
    """Returns which results depend on some arguments."""
    reached = {*arguments}
    for equation in jaxpr.eqns:
        if not reached.isdisjoint(variables_of(equation.invars)):
            reached.update(equation.outvars)
    return [not isinstance(v, jex.Literal) and v in reached for v in jaxpr.outvars]


def _after(
    variables: Sequence[jax.Array], cotangents: Sequence[Any]
) -> Sequence[jax.Array]:
    """Returns variables that are read after gradients are known.

    Otherwise XLA reads them once, for both passes.
    """
    numeric = [g for g in cotangents if g.dtype != jax.dtypes.float0]
    variables, _ = jax.lax.optimization_barrier(([*variables], numeric))
    return variables
