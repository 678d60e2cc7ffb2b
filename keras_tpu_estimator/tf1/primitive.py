"""A converted step as a JAX primitive, inlined where it is called."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive

from keras_tpu_estimator.engine.program.steps import GRAPH_SCOPE
from keras_tpu_estimator.ground.cpu.tuning import tuned
from keras_tpu_estimator.ground.mesh.reductions import sum_over
from keras_tpu_estimator.tf1 import jax_internals
from keras_tpu_estimator.tf1.lifting import Lifted
from keras_tpu_estimator.tf1.module_ops import ALL_REDUCE, groups_of, windowed


def run(
    lifted: Lifted,
    key: jax.Array,
    args: Sequence[Any],
    axes: tuple[str, ...],
    by_device: bool = False,
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Runs a converted step.

    Args:
        lifted: The step.
        key: Two uint32 numbers for random ops.
        args: The inputs, followed by the values of the variables that it reads.
        axes: The mesh axes for sums over devices, or none for one device.
        by_device: Whether each kind of device draws its own random numbers. Defaults to
            `False`.

    Returns:
        The fetched tensors followed by the new values of variables, and for each result
        of `lifted.wide` the positions where values were cut off.
    """
    results: list[jax.Array] = _step.bind(
        key, *args, lifted=lifted, axes=axes, by_device=by_device
    )
    count = len(lifted.avals)
    return results[:count], results[count:]


def _run_alone(*args: Any, **settings: Any) -> Any:
    return jax.jit(functools.partial(_step.bind, **settings))(*args)


def _abstract(*args: Any, lifted: Lifted, **settings: Any) -> Any:
    del args, settings
    avals = [*lifted.avals]
    cut = [jax.core.ShapedArray(avals[n].shape, bool) for n in lifted.wide]
    return avals + cut


def _lower(
    context: Any,
    *operands: Any,
    lifted: Lifted,
    axes: tuple[str, ...],
    by_device: bool,
    for_cpu: bool = False,
) -> Any:
    def replacement(op: Any) -> Callable[..., jax.Array] | None:
        if op.name == ALL_REDUCE:
            return functools.partial(_total, axes, groups_of(op))
        function = windowed(op) if for_cpu else None
        return tuned(function) if function else None

    return jax_internals.inlined(
        context,
        lifted.module,
        GRAPH_SCOPE,
        operands,
        replacement,
        by_device,
        checked=[*lifted.wide],
    )


def _total(axes: tuple[str, ...], groups: list[list[int]], x: jax.Array) -> jax.Array:
    """Sums over devices."""
    if not axes:
        return x
    total: jax.Array = sum_over(x, axes, groups if len(groups) > 1 else None)
    return total


_step = Primitive(GRAPH_SCOPE)
_step.multiple_results = True
_step.def_impl(_run_alone)
_step.def_abstract_eval(_abstract)
jax_internals.register_lowering(_step, _lower)
jax_internals.register_lowering(
    _step, functools.partial(_lower, for_cpu=True), platform="cpu"
)
