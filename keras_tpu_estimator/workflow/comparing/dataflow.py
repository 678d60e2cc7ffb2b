"""The values between the variables and the loss of a step, in the order of computation.

The idea: two programs that compute the same loss group their operations by the
variables that these depend on. Where a layer of one program ends, the other program
has the same numbers, in whatever order of axes, although the operations in between may
differ. So each value is known by the set of variables behind it and by statistics that
do not depend on the order of its elements.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from keras_tpu_estimator.base.common.user_code import SourceLine
from keras_tpu_estimator.base.tracing.jaxprs import inner_functions, place_of
from keras_tpu_estimator.workflow.comparing import per_device

# The statistics of a value: mean, mean of absolute values, root of the mean of squares,
# least, greatest.
STATISTICS = 5
# Functions whose body the walk enters, because it computes the same as a call.
_CALLS = {
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    "remat",
    "remat2",
    "checkpoint",
}

# The operation that draws random numbers.
_RANDOM = "random_bits"
_UNKNOWN_LINE = "a line of a library"

# Stands for the batch among the variables behind a value.
INPUT = "(input)"


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation between the variables and the loss.

    Attributes:
        name: The operation, such as `dot_general` or `MatMul`.
        variables: The paths of all variables that its result depends on, with `INPUT`
            if it depends on the batch.
        size: The number of elements of its result.
        crosses: Whether an operation that depends on other variables uses it, or it is
            the loss.
        sources: The numbers of the operations that it uses.
        line: The user's line that made it, or `None`.
    """

    name: str
    variables: frozenset[str]
    size: int
    crosses: bool
    sources: tuple[int, ...] = ()
    line: SourceLine | None = None


@dataclasses.dataclass(frozen=True)
class ForwardPass:
    """What is known of a forward pass before it runs.

    Attributes:
        operations: In the order of computation; none if they are unknown.
        random: The user's lines that draw random numbers for the loss, as texts.
        devices: The number of devices.
    """

    operations: tuple[Operation, ...] = ()
    random: tuple[str, ...] = ()
    devices: int = 1


@dataclasses.dataclass(frozen=True)
class Dataflow:
    """A forward pass, with the statistics of the results of its operations.

    Attributes:
        statistics: Array of shape `[operations, STATISTICS]`.
    """

    forward: ForwardPass
    statistics: np.ndarray

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations in the order of computation."""
        return self.forward.operations

    def __post_init__(self) -> None:
        expected = (len(self.operations), STATISTICS)
        if self.statistics.shape != expected:
            raise ValueError(
                f"`statistics` must have shape {expected}. Received: "
                f"{self.statistics.shape}."
            )


def statistics_of(value: Any) -> jax.Array:
    """Returns the statistics of a tensor."""
    value = jnp.asarray(value, jnp.float32)
    return jnp.stack(
        [
            jnp.mean(value),
            jnp.mean(jnp.abs(value)),
            jnp.sqrt(jnp.mean(jnp.square(value))),
            jnp.min(value),
            jnp.max(value),
        ]
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Value:
    """A value of the walk: its tensor, where it comes from, and its mark.

    `random` are the lines of the random numbers that it depends on.
    """

    tensor: Any
    variables: frozenset[str]
    operations: frozenset[int] = frozenset()
    random: frozenset[str] = frozenset()
    mark: str | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class _Noted:
    """An operation of the walk, with the statistics of its result once computed."""

    equation: Any
    value: _Value
    size: int
    statistics: jax.Array | None = None

    @property
    def is_observed(self) -> bool:
        """Whether its result has statistics, or can have them."""
        return self.statistics is not None or self.value.tensor is not None


class Walk:
    """Evaluates a traced function, and notes its operations.

    It is used inside a trace, so that the statistics are computed on the devices, by
    the program of the step.

    Attributes:
        marked: Tensors by the name that `mark` gave them.
        devices: The number of devices on which the function runs.
    """

    def __init__(self, prefix: str):
        self._prefix = prefix
        self._noted: list[_Noted] = []
        self.marked: dict[str, Any] = {}
        self.devices = 1

    def run(self, traced: jex.ClosedJaxpr, arguments: Sequence[_Value]) -> list[_Value]:
        """Returns the results of a function."""
        constants = [_Value(c, frozenset()) for c in traced.consts]
        return self._function(traced.jaxpr, constants, arguments)

    def _function(
        self,
        jaxpr: jex.Jaxpr,
        constants: Sequence[_Value],
        arguments: Sequence[_Value],
    ) -> list[_Value]:
        values = dict(zip(jaxpr.constvars, constants, strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))

        def value(atom: Any) -> _Value:
            if isinstance(atom, jex.Literal):
                return _Value(atom.val, frozenset())
            return values[atom]

        for equation in jaxpr.eqns:
            inputs = [*map(value, equation.invars)]
            results = self._equation(jaxpr, equation, inputs)
            values.update(zip(equation.outvars, results, strict=True))
        return [*map(value, jaxpr.outvars)]

    def _equation(
        self, jaxpr: jex.Jaxpr, equation: Any, inputs: Sequence[_Value]
    ) -> list[_Value]:
        if equation.primitive.name == per_device.NAME:
            return self._on_devices(equation, inputs)
        called = self._called(equation, inputs)
        if called is not None:
            return called
        tensors = _evaluated(jaxpr, equation, [v.tensor for v in inputs])
        name = str(equation.params.get("name", ""))
        mark = None
        if name.startswith(self._prefix):
            mark = name.removeprefix(self._prefix)
            self.marked[mark] = tensors[0]
        variables = frozenset().union(*(v.variables for v in inputs))
        sources = frozenset().union(*(v.operations for v in inputs))
        random = frozenset().union(*(v.random for v in inputs))
        if equation.primitive.name == _RANDOM:
            place = place_of(equation.source_info)
            random |= {_UNKNOWN_LINE if place is None else str(place.line)}
        return [
            self._noted_value(
                equation, _Value(tensor, variables, sources, random, mark)
            )
            for tensor in tensors
        ]

    def _on_devices(self, equation: Any, inputs: Sequence[_Value]) -> list[_Value]:
        """Returns the results of a function that runs on several devices."""
        start, marked = len(self._noted), self.marked
        results: list[_Value] = []

        def evaluate(
            body: jex.ClosedJaxpr, tensors: Sequence[Any]
        ) -> per_device.Results:
            # A second trace of the same function starts again.
            del self._noted[start:]
            self.marked = {}
            arguments = [
                dataclasses.replace(value, tensor=tensor)
                for value, tensor in zip(inputs, tensors, strict=True)
            ]
            results[:] = self.run(body, arguments)
            scalars = [r for r in results if getattr(r.tensor, "size", 0) == 1]
            # A part without a loss, such as the lookup in a table, is a layer.
            numbers = [n for n in self._behind(scalars or results) if n >= start]
            statistics = {
                n: statistics_of(self._noted[n].value.tensor) for n in numbers
            }
            return [result.tensor for result in results], statistics, self.marked

        self.devices = per_device.devices_of(equation)
        tensors, statistics, equal = per_device.evaluated(
            equation, [v.tensor for v in inputs], evaluate
        )
        for number in range(start, len(self._noted)):
            noted = self._noted[number]
            self._noted[number] = dataclasses.replace(
                noted,
                value=dataclasses.replace(noted.value, tensor=None),
                size=noted.size * self.devices if noted.value.tensor.ndim else 1,
                statistics=statistics.get(number),
            )
        values = [
            dataclasses.replace(result, tensor=tensor)
            for result, tensor in zip(results, tensors, strict=True)
        ]
        # Sharded ones are results.
        sharded = {v.mark: v.tensor for v in values if v.mark is not None}
        self.marked = {**marked, **equal, **sharded}
        return values

    def _called(self, equation: Any, inputs: Sequence[_Value]) -> list[_Value] | None:
        """Returns the results of a function that the operation only calls."""
        if equation.primitive.name not in _CALLS:
            return None
        functions = [*_closed(equation.params)]
        if not functions or len(functions[0].jaxpr.invars) != len(inputs):
            return None
        return self.run(functions[0], inputs)

    def _noted_value(self, equation: Any, value: _Value) -> _Value:
        """Notes the operation of a value, and returns the value as its result."""
        tensor = value.tensor
        dtype = getattr(tensor, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating) or not tensor.size:
            return value
        self._noted.append(_Noted(equation, value, int(np.prod(tensor.shape))))
        return dataclasses.replace(value, operations=frozenset([len(self._noted) - 1]))

    def behind(self, result: _Value) -> tuple[ForwardPass, jax.Array]:
        """Returns the forward pass up to a result, with its statistics."""
        numbers = self._behind([result])
        operations = self._renumbered(numbers, result.operations)
        forward = ForwardPass(operations, tuple(sorted(result.random)), self.devices)
        if not numbers:
            return forward, jnp.zeros((0, STATISTICS))
        statistics = [self._statistics(self._noted[number]) for number in numbers]
        return forward, jnp.stack(statistics)

    def _statistics(self, noted: _Noted) -> jax.Array:
        if noted.statistics is not None:
            return noted.statistics
        return statistics_of(noted.value.tensor)

    def _behind(self, results: Sequence[_Value]) -> list[int]:
        """Returns the numbers of the operations that results depend on."""
        needed: set[int] = set()
        open_numbers = [n for result in results for n in result.operations]
        while open_numbers:
            number = open_numbers.pop()
            if number not in needed:
                needed.add(number)
                open_numbers += self._noted[number].value.operations
        return sorted(n for n in needed if self._noted[n].is_observed)

    def _renumbered(
        self, numbers: Sequence[int], last: frozenset[int]
    ) -> tuple[Operation, ...]:
        """Returns the operations with some numbers, and numbers these from 0."""
        new = {number: position for position, number in enumerate(numbers)}
        crossing = {*last}
        for number in numbers:
            value = self._noted[number].value
            crossing.update(
                source
                for source in value.operations
                if self._noted[source].value.variables != value.variables
            )
        operations = []
        for number in numbers:
            noted = self._noted[number]
            place = place_of(noted.equation.source_info)
            operations.append(
                Operation(
                    noted.equation.primitive.name,
                    noted.value.variables,
                    noted.size,
                    number in crossing,
                    tuple(sorted(new[s] for s in noted.value.operations if s in new)),
                    None if place is None else place.line,
                )
            )
        return tuple(operations)


def _evaluated(jaxpr: jex.Jaxpr, equation: Any, tensors: Sequence[Any]) -> list[Any]:
    """Returns the results of one operation of a function."""
    arguments = {
        variable: tensor
        for variable, tensor in zip(equation.invars, tensors, strict=True)
        if not isinstance(variable, jex.Literal)
    }
    alone = jaxpr.replace(
        constvars=[],
        invars=[*arguments],
        outvars=equation.outvars,
        eqns=[equation],
        effects=equation.effects,
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    function = jex.jaxpr_as_fun(jex.ClosedJaxpr(alone, []))
    results: list[Any] = function(*arguments.values())
    return results


def _closed(params: Mapping[str, Any]) -> Iterator[jex.ClosedJaxpr]:
    """Yields the functions in the parameters of an operation that calls one."""
    for value in params.values():
        if isinstance(value, jex.ClosedJaxpr):
            yield value
    for jaxpr in inner_functions(params):
        if not jaxpr.constvars:
            yield jex.ClosedJaxpr(jaxpr, [])


def argument(tensor: Any, variable: str | None = None) -> _Value:
    """Returns an argument of a walk: a variable's value, or a part of the batch."""
    return _Value(tensor, frozenset([INPUT if variable is None else variable]))
