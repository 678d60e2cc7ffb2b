"""Which results of a traced function differ between the cores that run it."""

from collections.abc import Sequence
from typing import Any

from jax.extend import core as jex

from keras_tpu_estimator.ground.tracing.jaxprs import Scan
from keras_tpu_estimator.ground.tracing.jaxprs import inner_functions

_TO_ALL = ("psum", "pmax", "pmin", "all_gather")


def varying(
    traced: jex.ClosedJaxpr, inputs: Sequence[bool], axes: Sequence[str]
) -> list[bool]:
    """Which outputs may differ between cores.

    What is computed from equal values is equal, and so is what is reduced over
    all cores. Everything else counts as different.

    Args:
        inputs: For each argument, whether it differs between cores.
        axes: Names of the mesh axes that the cores lie on.

    Example:

    >>> import jax
    >>> traced = jax.make_jaxpr(
    ...     lambda x: (x, jax.lax.psum(x, "batch")), axis_env=[("batch", 8)]
    ... )(1.0)
    >>> varying(traced, [True], ("batch",))
    [True, False]
    """
    return _outputs(traced.jaxpr, inputs, frozenset(axes))


def _outputs(
    jaxpr: jex.Jaxpr, inputs: Sequence[bool], axes: frozenset[str]
) -> list[bool]:
    differing = {v for v, own in zip(jaxpr.invars, inputs, strict=True) if own}

    def differs(atom: Any) -> bool:
        return not isinstance(atom, jex.Literal) and atom in differing

    for equation in jaxpr.eqns:
        results = _results(equation, list(map(differs, equation.invars)), axes)
        made = zip(equation.outvars, results, strict=True)
        differing.update(variable for variable, own in made if own)
    return list(map(differs, jaxpr.outvars))


def _results(
    equation: Any, inputs: list[bool], axes: frozenset[str]
) -> list[bool]:
    """Which results of one operation differ."""
    name, params = equation.primitive.name, equation.params
    if name == "axis_index":
        return [bool(axes & _axes_of(params))]
    if _reduces(name, params, axes):
        return [False] * len(equation.outvars)
    if name == "scan":
        return _of_scan(equation, inputs, axes)
    inner = list(inner_functions(params))
    if name == "cond" and not inputs[0]:
        branches = [_outputs(branch, inputs[1:], axes) for branch in inner]
        return [any(results) for results in zip(*branches, strict=True)]
    if len(inner) == 1 and len(inner[0].invars) == len(inputs):
        return _outputs(inner[0], inputs, axes)
    # A loop, for one: it is enough to know whether it tells the cores apart.
    own = any(inputs) or any(
        any(_outputs(each, [False] * len(each.invars), axes)) for each in inner
    )
    return [own] * len(equation.outvars)


def _reduces(name: str, params: Any, axes: frozenset[str]) -> bool:
    """Whether an operation gives all cores the same result."""
    in_groups = params.get("axis_index_groups") is not None
    return name in _TO_ALL and axes <= _axes_of(params) and not in_groups


def _axes_of(params: Any) -> frozenset[Any]:
    """The axes that an operation is about."""
    over = params.get("axes", params.get("axis_name", ()))
    return frozenset(over if isinstance(over, list | tuple) else (over,))


def _of_scan(
    equation: Any, inputs: list[bool], axes: frozenset[str]
) -> list[bool]:
    """As of one round, with all that comes back from the round before."""
    scan = Scan.of(equation)
    while True:
        results = _outputs(scan.body, inputs, axes)
        back = [False] * scan.constants + results[: scan.carried]
        back += [False] * (len(inputs) - len(back))
        grown = [a or b for a, b in zip(inputs, back, strict=True)]
        if grown == inputs:
            return results
        inputs = grown
