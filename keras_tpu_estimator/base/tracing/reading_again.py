"""Functions that read variables a second time for their gradients."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
from jax.extend import core as jex

from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.tracing import jaxprs, rematerialization

# A function of variables and of other values.
OfVariables: TypeAlias = Callable[[Sequence[jax.Array], Sequence[jax.Array]], PyTree]


def reading_again(function: OfVariables) -> OfVariables:
    """Returns a function that keeps nothing of its variables for gradients.

    What depends only on the variables is computed again in the backward pass,
    once the gradient of the results is known.

    Args:
        function: A function of variables and of other values.

    Example:

    >>> import jax, jax.numpy as jnp
    >>> again = reading_again(lambda v, x: [x[0] * jnp.sin(v[0])])
    >>> float(jax.grad(lambda v: again([v], [3.0])[0])(0.0))
    3.0
    """

    @jax.custom_vjp
    def again(variables: Sequence[jax.Array], others: Sequence[jax.Array]) -> PyTree:
        return function(variables, others)

    def forward(
        variables: Sequence[jax.Array], others: Sequence[jax.Array]
    ) -> tuple[PyTree, PyTree]:
        structure: Any = None

        def with_residuals(*args: jax.Array) -> tuple[PyTree, PyTree]:
            nonlocal structure
            given = [*args[: len(variables)]], [*args[len(variables) :]]
            results, pull_back = jax.vjp(function, *given)
            residuals, structure = jax.tree.flatten(pull_back)
            return results, residuals

        traced = jax.make_jaxpr(with_residuals)(*variables, *others)
        depends = _depending(traced.jaxpr, traced.jaxpr.invars[len(variables) :])
        total = len(depends)
        count = total - structure.num_leaves
        computed = [n for n in range(count, total) if not depends[n]]
        kept = [n for n in range(count, total) if depends[n]]
        results_and_kept = jaxprs.only(traced, [*range(count), *kept])
        flat = jex.jaxpr_as_fun(results_and_kept)(*variables, *others)
        compute = jex.jaxpr_as_fun(
            jaxprs.without_last_arguments(
                jaxprs.only(traced, computed, with_effects=False), len(others)
            )
        )

        def pull_back(
            variables: Sequence[jax.Array],
            saved: Sequence[jax.Array],
            cotangents: Sequence[Any],
        ) -> tuple[PyTree, PyTree]:
            by_number = dict(zip(kept, saved, strict=True))
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
    found = {*arguments}
    for equation in jaxpr.eqns:
        if not found.isdisjoint(rematerialization.variables_of(equation.invars)):
            found.update(equation.outvars)
    return [not isinstance(v, jex.Literal) and v in found for v in jaxpr.outvars]


def _after(
    variables: Sequence[jax.Array], cotangents: Sequence[Any]
) -> Sequence[jax.Array]:
    """Returns variables that are read after gradients are known.

    Otherwise XLA reads them once, for both passes.
    """
    known = [g for g in cotangents if g.dtype != jax.dtypes.float0]
    variables, _ = jax.lax.optimization_barrier(([*variables], known))
    return variables
