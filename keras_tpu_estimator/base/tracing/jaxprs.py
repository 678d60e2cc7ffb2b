"""Operations on traced functions, and the user's places in them."""

import dataclasses
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core as jex
from jax.interpreters import partial_eval

from keras_tpu_estimator.base.common.user_files import SourceLine, is_of_user

Name = TypeVar("Name", bound=str | int)
_MARK = "keras_tpu_estimator.variable:"


def mark(value: jax.Array, name: str) -> jax.Array:
    """Marks a value that may become an argument."""
    return checkpoint_name(value, _MARK + name)


def marked_equations(traced: jex.ClosedJaxpr) -> dict[str, jex.JaxprEqn]:
    """Returns the outermost equations of `mark`, by name."""
    return {
        equation.params["name"].removeprefix(_MARK): equation
        for equation in traced.jaxpr.eqns
        if str(equation.params.get("name", "")).startswith(_MARK)
    }


def without_dead_code(traced: jex.ClosedJaxpr) -> jex.ClosedJaxpr:
    """Returns a trace without the equations that nothing depends on.

    Its inputs and outputs remain unchanged.

    Example:

    >>> traced = jax.make_jaxpr(lambda x: (x + 1, x * 2)[0])(1.0)
    >>> len(traced.eqns), len(without_dead_code(traced).eqns)
    (2, 1)
    """
    used = [True] * len(traced.jaxpr.outvars)
    jaxpr, _ = partial_eval.dce_jaxpr(traced.jaxpr, used, instantiate=True)
    return traced.replace(jaxpr=jaxpr)


def only(
    traced: jex.ClosedJaxpr, outputs: Iterable[int], with_effects: bool = True
) -> jex.ClosedJaxpr:
    """Returns the part of a trace that computes some of its outputs.

    Args:
        with_effects: Whether to keep equations with effects. Defaults to `True`.
    """
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


def with_arguments(
    traced: jex.ClosedJaxpr, position: int, equations: Sequence[jex.JaxprEqn]
) -> jex.ClosedJaxpr:
    """Turns the results of some equations into arguments.

    Args:
        position: The number of the first of these arguments.
        equations: The equations, which are removed.
    """
    jaxpr = traced.jaxpr
    skipped = {id(equation) for equation in equations}
    invars = list(jaxpr.invars)
    invars[position:position] = [e.outvars[0] for e in equations]
    kept = [e for e in jaxpr.eqns if id(e) not in skipped]
    return jex.ClosedJaxpr(jaxpr.replace(invars=invars, eqns=kept), traced.consts)


def without_unused(
    names: tuple[Name, ...], pure: jex.ClosedJaxpr
) -> tuple[tuple[Name, ...], jex.ClosedJaxpr]:
    """Removes named arguments that the function does not use.

    Args:
        names: The names of the first arguments.
    """
    jaxpr = pure.jaxpr
    used = {id(v) for e in jaxpr.eqns for v in e.invars}
    used.update(id(v) for v in jaxpr.outvars)
    count = len(names)
    kept = [
        (name, var)
        for name, var in zip(names, jaxpr.invars, strict=False)
        if id(var) in used
    ]
    invars = [*(var for _, var in kept), *jaxpr.invars[count:]]
    return tuple(name for name, _ in kept), jex.ClosedJaxpr(
        jaxpr.replace(invars=invars), pure.consts
    )


def without_last_arguments(traced: jex.ClosedJaxpr, count: int) -> jex.ClosedJaxpr:
    """Drops the last arguments, which the function does not use."""
    jaxpr = traced.jaxpr
    invars = jaxpr.invars[: len(jaxpr.invars) - count]
    names = jaxpr.debug_info.with_unknown_names()
    return traced.replace(jaxpr=jaxpr.replace(invars=invars, debug_info=names))


def callbacks(traced: jex.ClosedJaxpr) -> list[str]:
    """Returns the sorted names of the primitives that call Python."""
    return sorted(
        {
            eqn.primitive.name
            for eqn in _all_equations(traced.jaxpr)
            if eqn.primitive.name.endswith("_callback")
        }
    )


def inner_functions(params: Mapping[str, Any]) -> Iterator[jex.Jaxpr]:
    """Yields the functions in the parameters of an equation."""
    for value in params.values():
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, jex.ClosedJaxpr):
                yield each.jaxpr
            elif isinstance(each, jex.Jaxpr):
                yield each


@dataclasses.dataclass(frozen=True)
class Scan:
    """The parts of a scan, independent of JAX's names of its parameters.

    Attributes:
        body: One round, of constants, carried values and stacked values.
        constants: The number of arguments that are constants.
        carried: The number of values from the previous round.
    """

    body: jex.Jaxpr
    constants: int
    carried: int

    @classmethod
    def of(cls, equation: jex.JaxprEqn) -> Self:
        """Returns the parts of a scan's equation."""
        body = equation.params["jaxpr"].jaxpr
        carried = _unstacked(equation.outvars, body.outvars)
        alike = _unstacked(equation.invars, body.invars)
        return cls(body, alike - carried, carried)


def _unstacked(outer: Sequence[Any], inner: Sequence[Any]) -> int:
    """Counts the values that have the same rank in a round and in the scan."""
    return sum(
        len(whole.aval.shape) == len(one.aval.shape)
        for whole, one in zip(outer, inner, strict=True)
    )


def _all_equations(jaxpr: jex.Jaxpr) -> Iterator[jex.JaxprEqn]:
    """Yields the equations of all levels."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in inner_functions(eqn.params):
            yield from _all_equations(inner)


class UserPlace(NamedTuple):
    """A line of the user's code and its function.

    Attributes:
        line: The line.
        function: The function's name.
    """

    line: SourceLine
    function: str

    def __str__(self) -> str:
        return f"{self.line} in `{self.function}`"


def place_of(source_info: Any) -> UserPlace | None:
    """Returns the innermost place in the user's code that JAX recorded for an equation.

    Example:

    >>> place_of(None) is None
    True
    """
    trace = getattr(source_info, "traceback", None)
    for frame in () if trace is None else trace.frames:
        if is_of_user(frame.file_name):
            line = SourceLine(frame.file_name, frame.line_num)
            return UserPlace(line, frame.function_name)
    return None


def place_of_error(error: BaseException) -> UserPlace | None:
    """Returns the innermost place in the user's code in an error's traceback."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_of_user(frame.filename):
            line = SourceLine(frame.filename, frame.lineno or 0)
            return UserPlace(line, frame.name)
    return None
