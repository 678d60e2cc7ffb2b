"""Rewriting the operations of a traced function.

A step is rewritten after it is traced. The trace contains the operations that
differentiation and loops made from the user's, and the user's code is unchanged.
"""

import functools
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex

Rule = Callable[[jex.JaxprEqn], Callable[..., jax.Array] | None]


def rewritten(
    function: Callable[..., Any], rules: Mapping[str, Rule]
) -> Callable[..., Any]:
    """Returns the same function with some of its operations replaced.

    It must be called under `jax.jit`, with pytrees of arrays; keyword arguments are
    static. Operations in loops, branches, shards and called functions are also
    replaced.

    Args:
        rules: Functions by the names of primitives. Each receives an equation and
            returns a function of its operands with the same result, or `None` to keep
            the equation.
    """

    @functools.wraps(function)
    def run(*args: Any, **static: Any) -> Any:
        bound = functools.partial(function, **static)
        traced, result = jax.make_jaxpr(bound, return_shape=True)(*args)
        new = _Rewriting(rules).closed(traced)
        values = jex.jaxpr_as_fun(new)(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(result), values)

    return run


def like_of(operand: jex.Var | jex.Literal) -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype of an equation's operand or result."""
    aval: Any = operand.aval
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


class _Rewriting:
    """Rewrites each trace once, because XLA compiles equal traces once."""

    def __init__(self, rules: Mapping[str, Rule]):
        self._rules = rules
        self._rewritten: dict[jex.Jaxpr, jex.Jaxpr] = {}
        # Most layers of a model are alike, and so are their operations.
        self._calls: dict[Hashable, jex.JaxprEqn | None] = {}

    def closed(self, traced: jex.ClosedJaxpr) -> jex.ClosedJaxpr:
        """Returns the rewritten trace, or the same object if nothing changes."""
        jaxpr = self._jaxpr(traced.jaxpr)
        if jaxpr is traced.jaxpr:
            return traced
        return jex.ClosedJaxpr(jaxpr, traced.consts)

    def _jaxpr(self, jaxpr: jex.Jaxpr) -> jex.Jaxpr:
        if jaxpr not in self._rewritten:
            new = [self._equations(equation) for equation in jaxpr.eqns]
            same = all(a is b for (a, *_), b in zip(new, jaxpr.eqns, strict=True))
            equations = [equation for group in new for equation in group]
            self._rewritten[jaxpr] = jaxpr if same else jaxpr.replace(eqns=equations)
        return self._rewritten[jaxpr]

    def _equations(self, equation: jex.JaxprEqn) -> list[jex.JaxprEqn]:
        """Returns the equations that replace one, or only this one."""
        if equation.params.get("check_vma"):
            # Arrays in such shards record the axes over which they vary, which
            # rules do not support.
            return [equation]
        rule = self._rules.get(equation.primitive.name)
        call = self._call(rule, equation) if rule else None
        if call is not None:
            return _in_place_of(equation, call)
        params = {k: self._nested(v) for k, v in equation.params.items()}
        if all(params[k] is v for k, v in equation.params.items()):
            return [equation]
        return [equation.replace(params=params)]

    def _call(self, rule: Rule, equation: jex.JaxprEqn) -> jex.JaxprEqn | None:
        """Returns a call of the function that replaces an equation, if there is one."""
        operands = tuple(operand.aval for operand in equation.invars)
        key = (equation.primitive, operands, *equation.params.items())
        if key not in self._calls:
            function = rule(equation)
            self._calls[key] = function and _call(function, equation)
        return self._calls[key]

    def _nested(self, value: Any) -> Any:
        """Returns a parameter of an equation with rewritten traces."""
        if isinstance(value, jex.ClosedJaxpr):
            return self.closed(value)
        if isinstance(value, jex.Jaxpr):
            return self._jaxpr(value)
        if type(value) in (tuple, list):
            new = type(value)(self._nested(item) for item in value)
            same = all(a is b for a, b in zip(new, value, strict=True))
            return value if same else new
        return value


def _call(function: Callable[..., jax.Array], equation: jex.JaxprEqn) -> jex.JaxprEqn:
    """Returns a call of a function with the operands of an equation."""
    like = [like_of(operand) for operand in equation.invars]
    # If the user disables jit to inspect steps, there would be no call.
    with jax.disable_jit(False):
        (call,) = jax.make_jaxpr(jax.jit(function))(*like).eqns
    return call


def _in_place_of(equation: jex.JaxprEqn, call: jex.JaxprEqn) -> list[jex.JaxprEqn]:
    """Returns a call's equations with another equation's operands and source line."""
    inner = call.params["jaxpr"]
    renamed_variables = dict(zip(inner.jaxpr.invars, equation.invars, strict=True))
    assigned = {id(v) for inner_equation in inner.eqns for v in inner_equation.outvars}
    results = {id(v) for v in inner.jaxpr.outvars}
    if inner.consts or len(results) < len(equation.outvars) or not results <= assigned:
        # Results that are constants, operands or equal keep their call.
        return [equation.replace(primitive=call.primitive, params=call.params)]
    renamed_variables.update(zip(inner.jaxpr.outvars, equation.outvars, strict=True))

    def renamed(atom: jex.Var | jex.Literal) -> jex.Var | jex.Literal:
        if isinstance(atom, jex.Literal):
            return atom
        return renamed_variables.setdefault(atom, jex.Var(atom.aval))

    return [
        inner_equation.replace(
            invars=list(map(renamed, inner_equation.invars)),
            outvars=list(map(renamed, inner_equation.outvars)),
            source_info=equation.source_info,
            ctx=equation.ctx,
        )
        for inner_equation in inner.eqns
    ]


def padded(
    x: jax.Array,
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int] | None = None,
    value: float = 0,
) -> jax.Array:
    """Pads an array after any dilation; negative padding crops it."""
    widths = [
        (low, high, apart - 1)
        for (low, high), apart in zip(padding, dilation or [1] * x.ndim, strict=True)
    ]
    if not any(map(any, widths)):
        return x
    return lax.pad(x, np.asarray(value, x.dtype), widths)


def starts(
    count: Sequence[int], steps: Sequence[int] | None = None
) -> list[tuple[int, ...]]:
    """Returns the starts of slices at regular steps; the last axis varies fastest."""
    positions_by_axis = [
        [index * step for index in range(number)]
        for number, step in zip(count, steps or [1] * len(count), strict=True)
    ]
    return list(itertools.product(*positions_by_axis))


def slices(
    x: jax.Array,
    at: Sequence[Sequence[int]],
    sizes: Sequence[int],
    apart: Sequence[int] | None = None,
) -> Iterator[jax.Array]:
    """Yields a slice for each start, with the given sizes and steps of each axis."""
    apart = apart or [1] * x.ndim
    for start in at:
        stop = [
            first + (size - 1) * step + 1
            for first, size, step in zip(start, sizes, apart, strict=True)
        ]
        yield lax.slice(x, start, stop, apart)


def exact(x: jax.Array) -> jax.Array:
    """Returns an array in the dtype of its sums, with at least 32 bits."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
