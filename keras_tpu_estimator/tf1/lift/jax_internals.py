"""All private parts of JAX that this package uses for TF1: StableHLO modules.

`tests/tf1/test_tf1_jax_internals.py` fails when JAX changes any of them.
"""

import functools
import io
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import mlir as jax_mlir
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func, stablehlo
from jax.interpreters import mlir

# The version of the modules that `stablehlo_of` makes, for cached ones.
FORM = 2
_COPY = "mhlo.copy"
# MLIR's error for modules that it cannot convert or read.
MLIRError: type[Exception] = ir.MLIRError


def stablehlo_of(hlo: bytes) -> bytes:
    """Converts a serialized HLO module to StableHLO."""
    module: bytes = jax_mlir.hlo_to_stablehlo(hlo)
    with mlir.make_ir_context():
        parsed = ir.Module.parse(module)
        # StableHLO has no such operation, and XLA accepts it only for a CPU.
        copies = [op for op in _operations(parsed) if op.name == _COPY]
        for op in copies:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
        if copies:
            code = io.BytesIO()
            parsed.operation.write_bytecode(code)
            module = code.getvalue()
    return module


def signature_of(module: bytes) -> tuple[list[str], list[str]]:
    """Returns the argument and result types of a module, as MLIR writes them."""
    with mlir.make_ir_context():
        inputs, results = _main_types(ir.Module.parse(module))
        return [str(t) for t in inputs], [str(t) for t in results]


def _main_types(module: Any) -> tuple[list[Any], list[Any]]:
    main: Any = ir.SymbolTable(module.operation)["main"]
    return list(main.type.inputs), list(main.type.results)


def op_names(module: bytes) -> list[str]:
    """Returns the operations of a module, with the targets of custom calls."""
    with mlir.make_ir_context():
        return [_name(op) for op in _operations(ir.Module.parse(module))]


def element_types(module: bytes) -> set[str]:
    """Returns the element types of the tensors in a module, as MLIR writes them."""
    with mlir.make_ir_context():
        return {
            str(ir.RankedTensorType(result.type).element_type)
            for op in _operations(ir.Module.parse(module))
            for result in op.results
            if isinstance(result.type, ir.RankedTensorType)
        }


def _name(op: Any) -> str:
    if op.name != "stablehlo.custom_call":
        return str(op.name)
    target = ir.StringAttr(op.attributes["call_target_name"]).value
    return f"stablehlo.custom_call {target}"


def register_lowering(
    primitive: Primitive,
    lower: Callable[..., Sequence[Any]],
    platform: str | None = None,
) -> None:
    """Registers a function that lowers a primitive.

    The function of the context, operands and parameters returns the results. By default
    it is for all platforms without a separate registration.
    """
    mlir.register_lowering(primitive, lower, platform=platform)


def inlined(
    context: Any,
    module: bytes,
    name: str,
    operands: Sequence[Any],
    replacement: Callable[[Any], Callable[..., jax.Array] | None],
    draws_by_device: bool = False,
    checked: Sequence[int] = (),
) -> list[Any]:
    """Calls a module inside the module that JAX is lowering, and returns JAX's results.

    The operands are cast to the width that the module expects. `replacement` receives
    an operation of the module, and returns a JAX function of its operands to replace
    it, or `None` to keep it. For each position in `checked`, an additional result at
    the end tells where the cast of that result changed values.
    """
    parsed = ir.Module.parse(module)
    for number, op in enumerate(list(_operations(parsed))):
        if draws_by_device and op.name == _BITS:
            _draw_by_device(op)
            continue
        function = replacement(op)
        if function is not None:
            _replace(context, parsed, f"{_BY_JAX}_{number}", op, function)
    inputs, outputs = _main_types(parsed)
    merged = mlir.merge_mlir_modules(
        context.module_context.module,
        name,
        parsed,
        dst_symtab=context.module_context.symbol_table,
    )
    fitting = [_as(t, x) for t, x in zip(inputs, operands, strict=True)]
    reference = ir.FlatSymbolRefAttr.get(merged)
    results = func.CallOp(outputs, reference, fitting).results
    count = len(context.avals_out) - len(checked)
    types = [_type_of(aval) for aval in context.avals_out[:count]]
    fitted = [_as(t, x) for t, x in zip(types, results, strict=False)]
    return fitted + [_differs(results[n], fitted[n]) for n in checked]


_BY_JAX = "kte_by_jax"
_BITS = "stablehlo.rng_bit_generator"
# TensorFlow's state has a key and a counter of two words. Odd factors keep products
# distinct.
_PHILOX_STATE = (3,)
_ODD = np.array([0xD1B54A32D192ED03, 0x9E3779B97F4A7C15], np.uint64)
# The increment of the state for each draw.
_DRAWN = np.array([0, 1 << 32, 0], np.uint64)


def _as(kind: Any, value: Any) -> Any:
    """Casts a value to a type. Modules keep 64-bit numbers that JAX may not have."""
    return value if value.type == kind else stablehlo.convert(kind, value)


def cut_by_jax(types: Sequence[str]) -> list[int]:
    """Returns the positions of integers that JAX represents in fewer bits.

    >>> cut_by_jax(["tensor<2xi64>", "tensor<f64>", "tensor<ui64>"])
    [0, 2]
    """
    return [
        number
        for number, kind in enumerate(types)
        if re.search(r"[<x]u?i64>$", kind) and aval_of(kind).dtype.itemsize < 8
    ]


def _differs(wide: Any, narrow: Any) -> Any:
    """Returns where a narrower type changes a value."""
    back = stablehlo.convert(wide.type, narrow)
    direction = stablehlo.ComparisonDirectionAttr.get("NE")
    return stablehlo.compare(wide, back, direction)


def _replace(
    context: Any,
    module: ir.Module,
    name: str,
    op: Any,
    function: Callable[..., jax.Array],
) -> None:
    """Replaces an operation by the lowering of a JAX function."""
    (result,) = op.results
    kinds = [operand.type for operand in op.operands]
    inner_context = context.replace(
        primitive=None,
        avals_in=[aval_of(str(kind)) for kind in kinds],
        avals_out=[aval_of(str(result.type))],
    )
    lower = mlir.lower_fun(function, multiple_results=False)
    # A separate function, because some JAX releases ignore the insertion point.
    begin = ir.InsertionPoint.at_block_begin(module.body)
    with op.location:
        lowered: Any = func.FuncOp(name, (kinds, [result.type]), ip=begin)
        lowered.attributes["sym_visibility"] = ir.StringAttr.get("private")
        block = lowered.add_entry_block()
        with ir.InsertionPoint(block):
            func.ReturnOp(jax.tree.leaves(lower(inner_context, *block.arguments)))
        with ir.InsertionPoint(op):
            reference = ir.FlatSymbolRefAttr.get(name)
            call = func.CallOp([result.type], reference, list(op.operands))
    result.replace_all_uses_with(call.results[0])
    op.erase()


@functools.cache
def aval_of(kind: str) -> jax.core.ShapedArray:
    """Returns the fixed shape and the JAX dtype of a type in MLIR's syntax.

    A shape that is not fixed raises a ValueError.
    """
    with mlir.make_ir_context():
        parsed = ir.RankedTensorType(ir.Type.parse(kind))
        if not parsed.has_static_shape or "bounds" in kind:
            raise ValueError(f"Expected a fixed shape. Received: {kind}")
        dtype = DTYPES[str(parsed.element_type)]
        shape = tuple(parsed.shape)
    return jax.core.ShapedArray(shape, jax.dtypes.canonicalize_dtype(dtype))


def _type_of(aval: Any) -> Any:
    """Returns the MLIR type of a tensor. The signature of JAX's function varies."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    shape = "".join(f"{size}x" for size in aval.shape)
    return ir.Type.parse(f"tensor<{shape}{names[aval.dtype.name]}>")


DTYPES = {
    "i1": "bool",
    "bf16": "bfloat16",
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}


def _operations(op: Any) -> Iterator[Any]:
    """Yields all operations inside a module or an operation."""
    for region in op.operation.regions:
        for block in region:
            for inner in block:
                yield inner.operation
                yield from _operations(inner)


def _draw_by_device(op: Any) -> None:
    """Makes the device's own generator draw the bits of an operation.

    The state of that generator is one word shorter, and each kind of device advances it
    in its own way. Therefore both words contain the key and the counter.
    """
    state = op.operands[0]
    kind = ir.RankedTensorType(state.type)
    if tuple(kind.shape) != _PHILOX_STATE:
        return
    with op.location, ir.InsertionPoint(op):
        key, low, high = (
            stablehlo.slice(state, [word], [word + 1], [1]) for word in range(3)
        )
        stream = stablehlo.add(low, high)
        keys, streams = (
            stablehlo.concatenate([word, word], dimension=0) for word in (key, stream)
        )
        odd, drawn = map(_constant_words, (_ODD, _DRAWN))
        device_state = stablehlo.xor(keys, stablehlo.multiply(streams, odd))
        draw = stablehlo.RngBitGeneratorOp(
            device_state.type,
            op.results[1].type,
            stablehlo.RngAlgorithmAttr.get("DEFAULT"),
            device_state,
        )
        state = stablehlo.add(state, drawn)
    op.results[0].replace_all_uses_with(state)
    op.results[1].replace_all_uses_with(draw.results[1])
    op.erase()


def _constant_words(words: np.ndarray) -> Any:
    """Returns a constant of 64-bit words."""
    kind: Any = ir.RankedTensorType.get(words.shape, ir.IntegerType.get_unsigned(64))
    attribute: Any = ir.DenseElementsAttr
    return stablehlo.constant(attribute.get(words, type=kind))
