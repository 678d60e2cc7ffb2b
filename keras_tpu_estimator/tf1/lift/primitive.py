"""A converted step as a JAX primitive, whose operations JAX may replace."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from keras_tpu_estimator.base.cpu.tuning import tuned
from keras_tpu_estimator.base.mesh.replica_context import sum_over
from keras_tpu_estimator.engine.program.additions import FRONT_END_SCOPE
from keras_tpu_estimator.tf1.lift import jax_internals
from keras_tpu_estimator.tf1.lift.jax_internals import DTYPES
from keras_tpu_estimator.tf1.lift.lifting import Lifted

Function: TypeAlias = Callable[..., jax.Array]

ALL_REDUCE = "stablehlo.all_reduce"
_FLOATS = ("bfloat16", "float16", "float32")

_WINDOWS = {
    "stablehlo.add": (lax.add, 0.0),
    "stablehlo.maximum": (lax.max, -np.inf),
    "stablehlo.minimum": (lax.min, np.inf),
}
_SELECTIONS = {
    "stablehlo.compare GE": lax.ge_p,
    "stablehlo.compare LE": lax.le_p,
}


def groups_of(op: Any) -> list[list[int]]:
    """Returns the groups of devices of an all-reduce."""
    groups: Any = ir.DenseIntElementsAttr(op.attributes["replica_groups"])
    return _rows(groups, groups.type.shape[1])


def windowed(op: Any) -> Function | None:
    """Returns JAX's function for a convolution, pooling or gradient, if it has one."""
    read = _READERS.get(str(op.name))
    if read is None or _dtype_of(op) not in _FLOATS:
        return None
    return read(op)


def _convolution(op: Any) -> Function | None:
    if True in ir.DenseBoolArrayAttr(op.attributes["window_reversal"]):
        return None
    order: Any = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    return functools.partial(
        lax.conv_general_dilated,
        window_strides=_numbers(op, "window_strides"),
        padding=_pairs(op, "padding"),
        lhs_dilation=_numbers(op, "lhs_dilation"),
        rhs_dilation=_numbers(op, "rhs_dilation"),
        dimension_numbers=lax.ConvDimensionNumbers(
            (
                order.input_batch_dimension,
                order.input_feature_dimension,
                *order.input_spatial_dimensions,
            ),
            (
                order.kernel_output_feature_dimension,
                order.kernel_input_feature_dimension,
                *order.kernel_spatial_dimensions,
            ),
            (
                order.output_batch_dimension,
                order.output_feature_dimension,
                *order.output_spatial_dimensions,
            ),
        ),
        feature_group_count=_number(op, "feature_group_count"),
        batch_group_count=_number(op, "batch_group_count"),
        precision=_precision(op),
        preferred_element_type=_dtype_of(op),
    )


def _pooling(op: Any) -> Function | None:
    window = _WINDOWS.get(_operation_in(op.regions[0]))
    if window is None or _constant(op.operands[-1]) != window[1]:
        return None
    operator, neutral = window

    def pooled(x: jax.Array, initial: jax.Array) -> jax.Array:
        del initial
        return lax.reduce_window(
            x,
            np.asarray(neutral, x.dtype)[()],
            operator,
            _numbers(op, "window_dimensions"),
            _numbers(op, "window_strides"),
            _pairs(op, "padding"),
            _numbers(op, "base_dilations"),
            _numbers(op, "window_dilations"),
        )

    return pooled


def _selection(op: Any) -> Function | None:
    select = _SELECTIONS.get(_operation_in(op.regions[0]))
    is_sum = _operation_in(op.regions[1]) == "stablehlo.add"
    if select is None or not is_sum or _constant(op.operands[2]) != 0:
        return None

    def scattered(
        operand: jax.Array, source: jax.Array, initial: jax.Array
    ) -> jax.Array:
        del initial
        result: jax.Array = lax.select_and_scatter_add_p.bind(
            source,
            operand,
            select_prim=select,
            window_dimensions=_numbers(op, "window_dimensions"),
            window_strides=_numbers(op, "window_strides"),
            padding=_pairs(op, "padding"),
        )
        return result

    return scattered


_READERS: Mapping[str, Callable[[Any], Function | None]] = {
    "stablehlo.convolution": _convolution,
    "stablehlo.reduce_window": _pooling,
    "stablehlo.select_and_scatter": _selection,
}


def _number(op: Any, name: str) -> int:
    return int(ir.IntegerAttr(op.attributes[name]).value)


def _numbers(op: Any, name: str) -> tuple[int, ...]:
    return tuple(ir.DenseI64ArrayAttr(op.attributes[name]))


def _pairs(op: Any, name: str) -> tuple[tuple[int, int], ...]:
    rows = _rows(ir.DenseIntElementsAttr(op.attributes[name]), 2)
    return tuple((low, high) for low, high in rows)


def _rows(numbers: Any, size: int) -> list[list[int]]:
    flat = [int(number) for number in numbers]
    return [flat[at : at + size] for at in range(0, len(flat), size)]


def _precision(op: Any) -> tuple[lax.Precision, lax.Precision] | None:
    if "precision_config" not in op.attributes:
        return None
    lhs, rhs = ir.ArrayAttr(op.attributes["precision_config"])
    return lax.Precision[_enumerated(lhs)], lax.Precision[_enumerated(rhs)]


def _enumerated(value: Any) -> str:
    """Returns the name of a value, which MLIR writes as `#stablehlo<kind NAME>`."""
    return str(value).removesuffix(">").split()[-1]


def _dtype_of(op: Any) -> str:
    """Returns the name of the dtype of an operation's first result."""
    element = ir.RankedTensorType(op.results[0].type).element_type
    return DTYPES.get(str(element), "")


def _operation_in(region: Any) -> str:
    """Returns the only operation of a region, applied to its arguments, or ""."""
    (block,) = region.blocks
    first, *following = block.operations
    if len(following) != 1 or list(first.operands) != list(block.arguments):
        return ""
    name = str(first.operation.name)
    if name == "stablehlo.compare":
        direction = first.operation.attributes["comparison_direction"]
        name += " " + _enumerated(direction)
    return name


def _constant(value: Any) -> float | None:
    """Returns the value of a scalar constant, or `None`."""
    owner = value.owner
    if getattr(owner, "name", None) != "stablehlo.constant":
        return None
    number: Any = ir.DenseElementsAttr(owner.attributes["value"])
    return float(number.get_splat_value().value)


def run(
    lifted: Lifted,
    key: jax.Array,
    args: Sequence[Any],
    axes: tuple[str, ...],
    by_device: bool = False,
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Runs a converted step.

    It returns the fetched tensors followed by the new values of variables, and for each
    result of `lifted.wide` the positions where values were cut off.

    Args:
        key: Two uint32 numbers for random ops.
        args: The inputs, followed by the values of the variables that it reads.
        axes: The mesh axes for sums over devices, or none for one device.
        by_device: Whether each kind of device draws its own random numbers.
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
        FRONT_END_SCOPE,
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


_step = Primitive(FRONT_END_SCOPE)
_step.multiple_results = True
_step.def_impl(_run_alone)
_step.def_abstract_eval(_abstract)
jax_internals.register_lowering(_step, _lower)
jax_internals.register_lowering(
    _step, functools.partial(_lower, for_cpu=True), platform="cpu"
)
