"""Evaluation of a traced function in parts, with one program for equal parts.

The initial values of a model are many small independent computations, most of which
differ only in a seed. A single program would be lowered and compiled again for each
model. As parts, layers of one shape share a program, also in later models.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from keras_tpu_estimator.base.common.machine import Machine
from keras_tpu_estimator.base.common.types import TensorLike
from keras_tpu_estimator.base.cpu.quick_compiling import quick_options

# The number of cached programs.
_KEPT = 512


def evaluate_by_parts(
    traced: jex.ClosedJaxpr,
    arguments: Sequence[TensorLike],
    shardings: Sequence[jax.sharding.Sharding] | None = None,
) -> list[jax.Array]:
    """Evaluates a traced function once; no result shares memory with an argument."""
    jaxpr = traced.jaxpr
    inputs = [*traced.consts, *arguments]
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], inputs, strict=True))
    computed: dict[int, jax.Array] = {}
    for equations, numbers in _independent(jaxpr):
        part = _Part.from_equations(jaxpr, equations, numbers)
        part_shardings = shardings and tuple(shardings[number] for number in numbers)
        results = _compiled(part, part_shardings)(*(values[v] for v in part.inputs))
        computed.update(zip(numbers, results, strict=True))
    for number, atom in enumerate(jaxpr.outvars):
        if number not in computed:
            is_literal = isinstance(atom, jex.Literal)
            value = atom.val if is_literal else values[atom]
            computed[number] = _copied(value, shardings and shardings[number])
    return [computed[number] for number in range(len(jaxpr.outvars))]


@dataclasses.dataclass(frozen=True)
class _Part:
    """A part of a function, equal to other parts with the same computation, with which
    it shares a compiled program.

    The key is the computation in a comparable form.
    """

    inputs: Sequence[jex.Var] = dataclasses.field(compare=False)
    traced: jex.ClosedJaxpr = dataclasses.field(compare=False)
    key: Hashable

    @classmethod
    def from_equations(
        cls,
        jaxpr: jex.Jaxpr,
        equations: Sequence[jex.JaxprEqn],
        results: Sequence[int],
    ) -> "_Part":
        """Returns the part with these equations, which compute some results."""
        numbers: dict[jex.Var, int] = {}
        inputs: list[jex.Var] = []
        key: list[Hashable] = []
        for equation in equations:
            operands: list[Hashable] = []
            for atom in equation.invars:
                if isinstance(atom, jex.Literal):
                    value = np.asarray(atom.val).tobytes()
                    operands.append((atom.aval, value))
                    continue
                if atom not in numbers:
                    inputs.append(atom)
                operands.append(numbers.setdefault(atom, len(numbers)))
            for variable in equation.outvars:
                numbers[variable] = len(numbers)
            params = [(k, _hashable(v)) for k, v in equation.params.items()]
            key += [(equation.primitive, tuple(params), tuple(operands))]
        outputs = [jaxpr.outvars[number] for number in results]
        part = jaxpr.replace(
            constvars=[],
            invars=inputs,
            outvars=outputs,
            eqns=[*equations],
            effects=set().union(*(e.effects for e in equations)),
            debug_info=jaxpr.debug_info.with_unknown_names(),
        )
        input_key = tuple((v.aval, numbers[v]) for v in inputs)
        returned = tuple(numbers[v] for v in outputs if isinstance(v, jex.Var))
        traced = jex.ClosedJaxpr(part, [])
        return cls(inputs, traced, (input_key, tuple(key), returned))


def _independent(
    jaxpr: jex.Jaxpr,
) -> list[tuple[list[jex.JaxprEqn], list[int]]]:
    """Returns groups of equations that share no values, and their results' numbers."""
    made_by: dict[jex.Var, int] = {}
    # Each equation points to another one of its group, the last of them to itself.
    joined: list[int] = []

    def part(number: int) -> int:
        while joined[number] != number:
            joined[number] = joined[joined[number]]
            number = joined[number]
        return number

    for number, equation in enumerate(jaxpr.eqns):
        joined.append(number)
        for atom in equation.invars:
            if isinstance(atom, jex.Var) and atom in made_by:
                joined[part(made_by[atom])] = number
        made_by.update(dict.fromkeys(equation.outvars, number))
    results: dict[int, list[int]] = {}
    for number, atom in enumerate(jaxpr.outvars):
        if isinstance(atom, jex.Var) and atom in made_by:
            results.setdefault(part(made_by[atom]), []).append(number)
    equations: dict[int, list[jex.JaxprEqn]] = {number: [] for number in results}
    for number, equation in enumerate(jaxpr.eqns):
        if part(number) in results:
            equations[part(number)].append(equation)
    return [(equations[number], results[number]) for number in results]


@functools.lru_cache(_KEPT)
def _compiled(
    part: _Part, shardings: tuple[jax.sharding.Sharding, ...] | None
) -> Callable[..., list[jax.Array]]:
    devices = shardings[0].device_set if shardings else Machine.from_jax().host_devices
    return jax.jit(
        jex.jaxpr_as_fun(part.traced),
        out_shardings=shardings and [*shardings],
        compiler_options=quick_options(next(iter(devices)).platform),
    )


def _copied(value: TensorLike, sharding: Any) -> jax.Array:
    """Returns a copy with a sharding; hosts that share it need not communicate."""
    if isinstance(value, jax.Array) or sharding is not None:
        return jax.jit(jnp.copy, out_shardings=sharding)(value)
    # For NumPy arrays, a jitted copy would compile a program for each shape.
    return jax.device_put(np.array(value))


def _hashable(value: Any) -> Hashable:
    """Returns the value, or its `id` if it cannot be hashed."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value
