"""Which results of a traced function differ between the cores that run it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jax.extend import core as jex

from keras_tpu_estimator.ground.tracing.dataflow import Analysis, outputs

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
    return outputs(traced, inputs, _Varying(frozenset(axes)))


@dataclasses.dataclass(frozen=True)
class _Varying(Analysis[bool]):
    """Whether a value differs between cores.

    Attributes:
        axes: Names of the mesh axes that the cores lie on.
    """

    axes: frozenset[str]

    def constant(self, atom: Any) -> bool:
        return False

    def join(self, facts: Sequence[bool]) -> bool:
        return any(facts)

    def results(self, equation: Any, facts: list[bool]) -> list[bool]:
        name, params = equation.primitive.name, equation.params
        if name == "axis_index":
            return [bool(self.axes & _axes_of(params))]
        if self._reduces(name, params):
            return [False] * len(equation.outvars)
        return super().results(equation, facts)

    def _reduces(self, name: str, params: Any) -> bool:
        """Returns whether an operation gives all cores the same result."""
        in_groups = params.get("axis_index_groups") is not None
        over_all = self.axes <= _axes_of(params)
        return name in _TO_ALL and over_all and not in_groups


def _axes_of(params: Any) -> frozenset[Any]:
    """Returns the axes that an operation is about."""
    over = params.get("axes", params.get("axis_name", ()))
    return frozenset(over if isinstance(over, list | tuple) else (over,))
