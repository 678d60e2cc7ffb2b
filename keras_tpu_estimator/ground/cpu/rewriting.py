"""Rewriting what a function does, operation by operation, wherever it stands.

A step is rewritten after it is traced: what differentiation and loops made of a
user's operations is there to be seen, and user's code stays as it is.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.extend import core as jex

Rule = Callable[[jex.JaxprEqn], Callable[..., jax.Array] | None]


def rewritten(
    function: Callable[..., Any], rules: Mapping[str, Rule]
) -> Callable[..., Any]:
    """The same function, some of whose operations are done in other ways.

    It is to be called under `jax.jit`. What stands in loops, branches, shards
    and functions that are called is rewritten, too.

    Args:
        function: A function of nests of arrays; keyword arguments are static.
        rules: For names of primitives, what makes of an equation a function of
            its operands with the same result, or `None` to leave it alone.

    Example:

    >>> import jax, jax.numpy as jnp
    >>> from keras_tpu_estimator.ground.cpu.rewriting import rewritten
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
    """The shape and the dtype of an equation's operand, or of its result."""
    aval: Any = operand.aval
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


class _Rewriting:
    """Rewrites traces, each once, since XLA compiles those that are equal once.

    Args:
        rules: As in `rewritten`.
    """

    def __init__(self, rules: Mapping[str, Rule]):
        self._rules = rules
        self._known: dict[jex.Jaxpr, jex.Jaxpr] = {}

    def closed(self, traced: jex.ClosedJaxpr) -> jex.ClosedJaxpr:
        """The rewritten trace; the same object if nothing had to change."""
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
            # Arrays in such shards say over which axes they vary, and rules do
            # not.
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
        """A parameter of an equation, in which there may be traces."""
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
    """A call of a function, in place of an equation.

    Profiles and errors show it as what the user's line does.
    """
    like = [like_of(each) for each in equation.invars]
    # Where a user runs without jit, to look into steps, there would be no call.
    with jax.disable_jit(False):
        (call,) = jax.make_jaxpr(jax.jit(function))(*like).eqns
    inner = call.params["jaxpr"]
    eqns = [e.replace(source_info=equation.source_info) for e in inner.eqns]
    named = jex.ClosedJaxpr(inner.jaxpr.replace(eqns=eqns), inner.consts)
    return equation.replace(
        primitive=call.primitive, params={**call.params, "jaxpr": named}
    )
