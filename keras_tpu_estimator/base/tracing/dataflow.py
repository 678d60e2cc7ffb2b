"""Dataflow analysis of traced functions.

An analysis defines facts of constants and of the results of operations. The walk
follows them into each inner function: branches, loops until nothing changes, functions
with custom derivatives, and kernels, which write into references.
"""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from jax.extend import core as jex

from keras_tpu_estimator.base.tracing.jaxprs import Scan, inner_functions

Fact = TypeVar("Fact")
_READS = ("get", "masked_load")


class Analysis(abc.ABC, Generic[Fact]):
    """The facts of values.

    The number of facts must be finite, and `join` must be monotonic.
    """

    @abc.abstractmethod
    def constant(self, atom: Any) -> Fact:
        """Returns the fact of a constant of the trace."""

    @abc.abstractmethod
    def join(self, facts: Sequence[Fact]) -> Fact:
        """Returns the fact of a value that is computed from values with these facts.

        Without facts, returns that of a value that depends on nothing.
        """

    def results(self, equation: Any, facts: list[Fact]) -> list[Fact]:
        """Returns the facts of an operation's results, given its arguments'."""
        return [self.join(facts)] * len(equation.outvars)

    def chosen(self, fact: Fact, by: Fact) -> Fact:
        """Returns the fact of a value whose computation a condition chose."""
        return self.join([fact, by])

    def look(self, equation: Any, facts: list[Fact]) -> None:
        """Inspects an operation with the final facts of its arguments."""


def outputs(
    traced: jex.ClosedJaxpr, inputs: Sequence[Fact], analysis: Analysis[Fact]
) -> list[Fact]:
    """Returns the fact of each result of a traced function.

    Args:
        inputs: The fact of each argument.
    """
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
        known = {v: self._constant(v) for v in jaxpr.constvars}
        known.update(zip(jaxpr.invars, inputs, strict=True))

        def fact(atom: Any) -> Any:
            if isinstance(atom, jex.Literal):
                return self.analysis.constant(atom)
            return known[atom]

        for equation in jaxpr.eqns:
            results = self._equation(equation, list(map(fact, equation.invars)))
            known.update(zip(equation.outvars, results, strict=True))
        return list(map(fact, jaxpr.outvars))

    def _constant(self, variable: Any) -> Any:
        if _is_reference(variable):
            return _Reference(self.analysis.join([]))
        return self.analysis.constant(variable)

    def _equation(self, equation: Any, given: list[Any]) -> Sequence[Any]:
        match equation.primitive.name:
            case "scan":
                return self._scan(Scan.of(equation), given)
            case "while":
                return self._while(equation.params, given)
            case "cond":
                return self._cond(equation, given)
            case "pallas_call":
                return self._kernel(equation, given)
        inner = list(inner_functions(equation.params))
        if len(inner) == 1 and len(inner[0].invars) == len(given):
            return self.function(inner[0], given)
        return self._operation(equation, given, inner)

    def _operation(
        self, equation: Any, given: list[Any], inner: Sequence[jex.Jaxpr]
    ) -> list[Any]:
        """Returns the facts of an operation's results from the analysis.

        Each argument of functions inside an unknown operation gets all facts of the
        operation.
        """
        facts = list(map(_fact, given))
        if self.is_final:
            self.analysis.look(equation, facts)
        results = self.analysis.results(equation, facts)
        everything = self.analysis.join(facts)
        for each in inner:
            all_given = [
                _Reference(everything) if _is_reference(v) else everything
                for v in each.invars
            ]
            made = map(_fact, self.function(each, all_given))
            found = self.analysis.join(list(made))
            results = [self.analysis.join([r, found]) for r in results]
        if equation.primitive.name not in _READS:
            self._write(given, facts)
        return [
            _Reference(result) if _is_reference(variable) else result
            for variable, result in zip(equation.outvars, results, strict=True)
        ]

    def _write(self, given: list[Any], facts: list[Fact]) -> None:
        for each in given:
            if isinstance(each, _Reference):
                each.fact = self.analysis.join([each.fact, *facts])

    def _cond(self, equation: Any, given: list[Any]) -> list[Any]:
        predicate = _fact(given[0])
        branches = [
            self.function(branch, given[1:])
            for branch in inner_functions(equation.params)
        ]
        self._write(given[1:], [predicate])
        return [
            self.analysis.chosen(self.analysis.join(results), predicate)
            for results in zip(*branches, strict=True)
        ]

    def _scan(self, scan: Scan, given: list[Any]) -> list[Any]:
        first, end = scan.constants, scan.constants + scan.carried

        def one(walk: "_Walk[Fact]", carried: list[Any]) -> list[Any]:
            inputs = [*given[:first], *carried, *given[end:]]
            return walk.function(scan.body, inputs)

        return self._settled(one, given[first:end], given)

    def _while(self, params: Any, given: list[Any]) -> list[Any]:
        condition, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
        first = params["cond_nconsts"]
        end = first + params["body_nconsts"]

        def one(walk: "_Walk[Fact]", carried: list[Any]) -> list[Any]:
            asked = walk.function(condition, [*given[:first], *carried])
            results = walk.function(body, [*given[first:end], *carried])
            # Any number of rounds may have run, including none.
            both = map(walk.analysis.join, zip(carried, results, strict=True))
            return [walk.analysis.chosen(fact, _fact(asked[0])) for fact in both]

        return self._settled(one, given[end:], given)

    def _settled(
        self,
        one: Callable[["_Walk[Fact]", list[Any]], list[Any]],
        carried: list[Any],
        given: list[Any],
    ) -> list[Any]:
        """Returns the results of a loop's round once its facts no longer change.

        Args:
            one: Makes one round from the results of the previous one.
            carried: The input of the first round.
            given: All inputs of the loop, including references.
        """
        first = dataclasses.replace(self, is_final=False)
        while True:
            before = list(map(_fact, given))
            results = one(first, carried)
            pairs = zip(carried, results[: len(carried)], strict=True)
            back = list(map(self.analysis.join, pairs))
            if back == carried and before == list(map(_fact, given)):
                return one(self, carried)
            carried = back

    def _kernel(self, equation: Any, given: list[Any]) -> list[Any]:
        """Returns the values that a kernel writes, in any order of its grid."""
        kernel = equation.params["jaxpr"]
        sizes = equation.params["grid_mapping"].num_dynamic_grid_bounds
        facts = list(map(_fact, given))
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
