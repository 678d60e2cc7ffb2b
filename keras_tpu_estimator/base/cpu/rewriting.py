"""Rewriting the operations of a traced function.

A step is rewritten after it is traced. The trace contains the operations that
differentiation and loops made from the user's, and the user's code is unchanged.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
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

    It must be called under `jax.jit`. Operations in loops, branches, shards and called
    functions are also replaced.

    Args:
        function: A function of pytrees of arrays; keyword arguments are static.
        rules: Functions by the names of primitives. Each receives an equation and
            returns a function of its operands with the same result, or `None` to keep
            the equation.

    Example:

    >>> import jax, jax.numpy as jnp
    >>> from keras_tpu_estimator.base.cpu.rewriting import rewritten
    >>> rules = {"tan": lambda equation: lambda x: jnp.sin(x) / jnp.cos(x)}
    >>> jax.make_jaxpr(rewritten(jnp.tan, rules))(1.0).eqns[-1].primitive.name
    'jit'
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
    """Rewrites each trace once, because XLA compiles equal traces once.

    Args:
        rules: As in `rewritten`.
    """

    def __init__(self, rules: Mapping[str, Rule]):
        self._rules = rules
        self._known: dict[jex.Jaxpr, jex.Jaxpr] = {}

    def closed(self, traced: jex.ClosedJaxpr) -> jex.ClosedJaxpr:
        """Returns the rewritten trace, or the same object if nothing changes."""
        jaxpr = self._jaxpr(traced.jaxpr)
        if jaxpr is traced.jaxpr:
            return traced
        return jex.ClosedJaxpr(jaxpr, traced.consts)

    def _jaxpr(self, jaxpr: jex.Jaxpr) -> jex.Jaxpr:
        if jaxpr not in self._known:
            equations = [self._equation(each) for each in jaxpr.eqns]
            changed = any(
                new is not old for new, old in zip(equations, jaxpr.eqns, strict=True)
            )
            self._known[jaxpr] = jaxpr.replace(eqns=equations) if changed else jaxpr
        return self._known[jaxpr]

    def _equation(self, equation: jex.JaxprEqn) -> jex.JaxprEqn:
        if equation.params.get("check_vma"):
            # Arrays in such shards record the axes over which they vary, which
            # rules do not support.
            return equation
        rule = self._rules.get(equation.primitive.name)
        function = rule(equation) if rule else None
        if function is not None:
            return _call(function, equation)
        params = {k: self._nested(v) for k, v in equation.params.items()}
        if all(params[k] is v for k, v in equation.params.items()):
            return equation
        return equation.replace(params=params)

    def _nested(self, value: Any) -> Any:
        """Returns a parameter of an equation with rewritten traces."""
        if isinstance(value, jex.ClosedJaxpr):
            return self.closed(value)
        if isinstance(value, jex.Jaxpr):
            return self._jaxpr(value)
        if type(value) in (tuple, list):
            new = type(value)(self._nested(each) for each in value)
            same = all(a is b for a, b in zip(new, value, strict=True))
            return value if same else new
        return value


def _call(function: Callable[..., jax.Array], equation: jex.JaxprEqn) -> jex.JaxprEqn:
    """Returns a call of a function that replaces an equation.

    Profiles and errors show it with the user's source line.
    """
    like = [like_of(each) for each in equation.invars]
    # If the user disables jit to inspect steps, there would be no call.
    with jax.disable_jit(False):
        (call,) = jax.make_jaxpr(jax.jit(function))(*like).eqns
    inner = call.params["jaxpr"]
    eqns = [e.replace(source_info=equation.source_info) for e in inner.eqns]
    named = jex.ClosedJaxpr(inner.jaxpr.replace(eqns=eqns), inner.consts)
    return equation.replace(
        primitive=call.primitive, params={**call.params, "jaxpr": named}
    )


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
    each = [
        [index * step for index in range(number)]
        for number, step in zip(count, steps or [1] * len(count), strict=True)
    ]
    return list(itertools.product(*each))


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
