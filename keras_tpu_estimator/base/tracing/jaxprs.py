"""Operations on traced functions, the user's places in them, and dataflow analysis.

An analysis defines facts of constants and of the results of operations. The walk
follows them into each inner function: branches, loops until nothing changes, functions
with custom derivatives, and kernels, which write into references.
"""

import abc
import dataclasses
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Self, TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core as jex
from jax.interpreters import partial_eval

from keras_tpu_estimator.base.common.user_code import SourceLine, is_of_user

Name = TypeVar("Name", bound=str | int)
_MARK = "keras_tpu_estimator.variable:"
# Before the path of the variable, in the name of a gradient of all replicas.
GRADIENT_MARK = "keras_tpu_estimator.gradient:"


def mark_gradient(value: jax.Array, path: str) -> jax.Array:
    """Marks the gradient of a variable, for comparisons of programs."""
    return checkpoint_name(value, GRADIENT_MARK + path)


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
    """Returns a trace without unused equations, but with all inputs and outputs."""
    used = [True] * len(traced.jaxpr.outvars)
    jaxpr, _ = partial_eval.dce_jaxpr(traced.jaxpr, used, instantiate=True)
    return traced.replace(jaxpr=jaxpr)


def only(
    traced: jex.ClosedJaxpr, outputs: Iterable[int], with_effects: bool = True
) -> jex.ClosedJaxpr:
    """Returns the part of a trace that makes some outputs and, by default, effects."""
    jaxpr = traced.jaxpr
    outvars = [jaxpr.outvars[index] for index in outputs]
    needed = {id(v) for v in outvars}
    equations = []
    # From the last equation back, because only later ones need its results.
    for equation in reversed(jaxpr.eqns):
        has_effects = with_effects and equation.effects
        if has_effects or any(id(v) in needed for v in equation.outvars):
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
    """Removes some equations, whose results become arguments from a position on."""
    jaxpr = traced.jaxpr
    skipped = {id(equation) for equation in equations}
    invars = list(jaxpr.invars)
    invars[position:position] = [e.outvars[0] for e in equations]
    remaining = [e for e in jaxpr.eqns if id(e) not in skipped]
    return jex.ClosedJaxpr(jaxpr.replace(invars=invars, eqns=remaining), traced.consts)


def without_unused(
    names: tuple[Name, ...], pure: jex.ClosedJaxpr
) -> tuple[tuple[Name, ...], jex.ClosedJaxpr]:
    """Removes unused arguments among the named ones, which are the first arguments."""
    jaxpr = pure.jaxpr
    used = {id(v) for e in jaxpr.eqns for v in e.invars}
    used.update(id(v) for v in jaxpr.outvars)
    count = len(names)
    used_names = [
        (name, var)
        for name, var in zip(names, jaxpr.invars, strict=False)
        if id(var) in used
    ]
    invars = [*(var for _, var in used_names), *jaxpr.invars[count:]]
    return tuple(name for name, _ in used_names), jex.ClosedJaxpr(
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
        for parameter in value if isinstance(value, list | tuple) else (value,):
            if isinstance(parameter, jex.ClosedJaxpr):
                yield parameter.jaxpr
            elif isinstance(parameter, jex.Jaxpr):
                yield parameter


@dataclasses.dataclass(frozen=True)
class Scan:
    """The parts of a scan, independent of JAX's names of its parameters.

    The body is one round. Its arguments are constants, values carried from the previous
    round, and stacked values.
    """

    body: jex.Jaxpr
    constants: int
    carried: int

    @classmethod
    def from_equation(cls, equation: jex.JaxprEqn) -> Self:
        """Returns the parts of a scan's equation."""
        body = equation.params["jaxpr"].jaxpr
        carried = _unstacked(equation.outvars, body.outvars)
        alike = _unstacked(equation.invars, body.invars)
        return cls(body, alike - carried, carried)


def _unstacked(outer: Sequence[Any], inner: Sequence[Any]) -> int:
    """Counts the values that have the same rank in a round and in the scan."""
    return sum(
        len(stacked.aval.shape) == len(single.aval.shape)
        for stacked, single in zip(outer, inner, strict=True)
    )


def _all_equations(jaxpr: jex.Jaxpr) -> Iterator[jex.JaxprEqn]:
    """Yields the equations of all levels."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in inner_functions(eqn.params):
            yield from _all_equations(inner)


class UserPlace(NamedTuple):
    """A line of the user's code and the name of its function."""

    line: SourceLine
    function: str

    def __str__(self) -> str:
        return f"{self.line} in `{self.function}`"


def place_of(source_info: Any) -> UserPlace | None:
    """Returns the innermost place in the user's code that JAX recorded."""
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


Fact = TypeVar("Fact")
_READS = ("get", "masked_load")


class Analysis(abc.ABC, Generic[Fact]):
    """Facts of values that follow from the facts of the values they depend on, whatever
    the numbers are.

    There are finitely many facts and `join` is monotonic, so that the facts of a loop
    stop changing after some rounds.
    """

    @abc.abstractmethod
    def constant(self, atom: Any) -> Fact:
        """Returns the fact of a constant of the trace."""

    @abc.abstractmethod
    def join(self, facts: Sequence[Fact]) -> Fact:
        """Returns the fact of a value that depends on these facts, or on nothing."""

    def results(self, equation: Any, facts: list[Fact]) -> list[Fact]:
        """Returns the facts of an operation's results, given its arguments'."""
        return [self.join(facts)] * len(equation.outvars)

    def selected(self, fact: Fact, by: Fact) -> Fact:
        """Returns the fact of a value whose computation a condition chose."""
        return self.join([fact, by])

    def look(self, equation: Any, facts: list[Fact]) -> None:
        """Inspects an operation with the final facts of its arguments."""


def outputs(
    traced: jex.ClosedJaxpr, inputs: Sequence[Fact], analysis: Analysis[Fact]
) -> list[Fact]:
    """Returns the facts of a traced function's results, given its arguments' facts."""
    return _Walk(analysis).function(traced.jaxpr, list(inputs))


@dataclasses.dataclass(eq=False)
class _Reference(Generic[Fact]):
    """A reference, with the joined fact of all values written to it."""

    fact: Fact


@dataclasses.dataclass(frozen=True)
class _Walk(Generic[Fact]):
    """The walk, with a fact or a `_Reference` for each value.

    Attributes:
        is_final: Whether facts are final, instead of those of a loop's first rounds.
    """

    analysis: Analysis[Fact]
    is_final: bool = True

    def function(self, jaxpr: jex.Jaxpr, inputs: Sequence[Any]) -> list[Any]:
        """Returns the facts of a function's results."""
        facts = {v: self._constant(v) for v in jaxpr.constvars}
        facts.update(zip(jaxpr.invars, inputs, strict=True))

        def fact(atom: Any) -> Any:
            if isinstance(atom, jex.Literal):
                return self.analysis.constant(atom)
            return facts[atom]

        for equation in jaxpr.eqns:
            results = self._equation(equation, list(map(fact, equation.invars)))
            facts.update(zip(equation.outvars, results, strict=True))
        return list(map(fact, jaxpr.outvars))

    def _constant(self, variable: Any) -> Any:
        if _is_reference(variable):
            return _Reference(self.analysis.join([]))
        return self.analysis.constant(variable)

    def _equation(self, equation: Any, inputs: list[Any]) -> Sequence[Any]:
        match equation.primitive.name:
            case "scan":
                return self._scan(Scan.from_equation(equation), inputs)
            case "while":
                return self._while(equation.params, inputs)
            case "cond":
                return self._cond(equation, inputs)
            case "pallas_call":
                return self._kernel(equation, inputs)
        inner = list(inner_functions(equation.params))
        if len(inner) == 1 and len(inner[0].invars) == len(inputs):
            return self.function(inner[0], inputs)
        return self._operation(equation, inputs, inner)

    def _operation(
        self, equation: Any, inputs: list[Any], inner: Sequence[jex.Jaxpr]
    ) -> list[Any]:
        """Returns the facts of an operation's results from the analysis.

        Each argument of functions inside an unknown operation gets all facts of the
        operation.
        """
        facts = list(map(_fact, inputs))
        if self.is_final:
            self.analysis.look(equation, facts)
        results = self.analysis.results(equation, facts)
        everything = self.analysis.join(facts)
        for function in inner:
            arguments = [
                _Reference(everything) if _is_reference(v) else everything
                for v in function.invars
            ]
            inner_facts = map(_fact, self.function(function, arguments))
            joined = self.analysis.join(list(inner_facts))
            results = [self.analysis.join([r, joined]) for r in results]
        if equation.primitive.name not in _READS:
            self._write(inputs, facts)
        return [
            _Reference(result) if _is_reference(variable) else result
            for variable, result in zip(equation.outvars, results, strict=True)
        ]

    def _write(self, inputs: list[Any], facts: list[Fact]) -> None:
        for reference in inputs:
            if isinstance(reference, _Reference):
                reference.fact = self.analysis.join([reference.fact, *facts])

    def _cond(self, equation: Any, inputs: list[Any]) -> list[Any]:
        predicate = _fact(inputs[0])
        branches = [
            self.function(branch, inputs[1:])
            for branch in inner_functions(equation.params)
        ]
        self._write(inputs[1:], [predicate])
        return [
            self.analysis.selected(self.analysis.join(results), predicate)
            for results in zip(*branches, strict=True)
        ]

    def _scan(self, scan: Scan, loop_inputs: list[Any]) -> list[Any]:
        first, end = scan.constants, scan.constants + scan.carried

        def one(walk: "_Walk[Fact]", carried: list[Any]) -> list[Any]:
            inputs = [*loop_inputs[:first], *carried, *loop_inputs[end:]]
            return walk.function(scan.body, inputs)

        return self._settled(one, loop_inputs[first:end], loop_inputs)

    def _while(self, params: Any, inputs: list[Any]) -> list[Any]:
        condition, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
        first = params["cond_nconsts"]
        end = first + params["body_nconsts"]

        def one(walk: "_Walk[Fact]", carried: list[Any]) -> list[Any]:
            predicate = walk.function(condition, [*inputs[:first], *carried])
            results = walk.function(body, [*inputs[first:end], *carried])
            # Any number of rounds may have run, including none.
            joined = map(walk.analysis.join, zip(carried, results, strict=True))
            return [
                walk.analysis.selected(fact, _fact(predicate[0])) for fact in joined
            ]

        return self._settled(one, inputs[end:], inputs)

    def _settled(
        self,
        one: Callable[["_Walk[Fact]", list[Any]], list[Any]],
        carried: list[Any],
        inputs: list[Any],
    ) -> list[Any]:
        """Returns the results of a loop's round once its facts no longer change.

        Args:
            one: Makes one round from the results of the previous one.
            carried: The input of the first round.
            inputs: All inputs of the loop, including references.
        """
        first = dataclasses.replace(self, is_final=False)
        while True:
            before = list(map(_fact, inputs))
            results = one(first, carried)
            pairs = zip(carried, results[: len(carried)], strict=True)
            back = list(map(self.analysis.join, pairs))
            if back == carried and before == list(map(_fact, inputs)):
                # Analyses look at operations only now, when facts are final.
                return one(self, carried)
            carried = back

    def _kernel(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """Returns the values that a kernel writes, in any order of its grid."""
        kernel = equation.params["jaxpr"]
        sizes = equation.params["grid_mapping"].num_dynamic_grid_bounds
        facts = list(map(_fact, inputs))
        aliases = dict(equation.params["input_output_aliases"])
        cells = [_Reference(fact) for fact in facts[sizes:]]
        count = len(cells)
        cells += [_Reference(self.analysis.join([])) for _ in kernel.invars[count:]]
        for source, target in aliases.items():
            cells[count + target].fact = facts[source]

        def one(walk: "_Walk[Fact]", carried: list[Any]) -> list[Any]:
            walk.function(kernel, cells)
            return carried

        self._settled(one, [], cells)
        return [cell.fact for cell in cells[count:][: len(equation.outvars)]]


def _fact(value: Any) -> Any:
    """Returns the fact of a value, or of a reference's content."""
    return value.fact if isinstance(value, _Reference) else value


def _is_reference(variable: Any) -> bool:
    return hasattr(variable.aval, "inner_aval")
