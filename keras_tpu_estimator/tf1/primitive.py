"""A lifted step as one JAX primitive, inlined where it is called."""

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
    """Runs a lifted step.

    Args:
        lifted: The step.
        key: Two integers of 32 bits, without sign, for random numbers.
        args: Its inputs, and then the values of what it reads.
        axes: The mesh axes that sums over cores are about; none for one core.
        by_device: Whether each kind of devices draws numbers of its own.
            Defaults to `False`.

    Returns:
        The fetched tensors, and then the new values of what it changes; and for
        each result of `lifted.wide` where its numbers were cut off.
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
    """A sum over cores."""
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
