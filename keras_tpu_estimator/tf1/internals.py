"""Every private part of TensorFlow and JAX that this room touches.

`tests/tf1/test_tf1_internals.py` fails when either changes any of them.
"""

import contextlib
import functools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend import mlir as jax_mlir
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from keras_tpu_estimator.tf1 import crossed_columns
from keras_tpu_estimator.tf1 import feature_columns


@contextlib.contextmanager
def shards(number: int) -> Iterator[None]:
    """Tells graphs built in a `with` block how many cores will run them."""
    from tensorflow.python.tpu import tpu_function

    with tpu_function.tpu_shard_context(number):
        yield


@contextlib.contextmanager
def for_xla(graph: Any) -> Iterator[None]:
    """Has what is built in a `with` block be such as XLA can compile.

    Else the gradients of loops keep the shapes of lists in other lists, those
    of conditions have optional values, and columns of features are sparse.

    Args:
        graph: Which graph it is about, with the functions that it calls.
    """
    from tensorflow.python.ops import control_flow_util

    is_for_xla = control_flow_util.GraphOrParentsInXlaContext

    def is_within(inner: Any) -> bool:
        outer = inner
        while outer is not graph and hasattr(outer, "outer_graph"):
            outer = outer.outer_graph
        return outer is graph or is_for_xla(inner)

    name = "GraphOrParentsInXlaContext"
    with _replaced(control_flow_util, name, is_within), _dense_columns():
        yield


@contextlib.contextmanager
def _dense_columns() -> Iterator[None]:
    """Has columns of features go without sparse tensors in a `with` block."""
    from tensorflow.python.feature_column import feature_column_v2
    from tensorflow.python.ops import embedding_ops
    from tensorflow.python.ops import sparse_ops

    ids = feature_column_v2.IdentityCategoricalColumn
    listed = feature_column_v2.VocabularyListCategoricalColumn
    with contextlib.ExitStack() as stack:
        for owner, name, adapt in (
            (feature_column_v2, _TO_SPARSE, feature_columns.to_cells),
            (ids, _TO_IDS, feature_columns.with_default),
            (listed, _TO_IDS, feature_columns.in_vocabulary),
            (sparse_ops, "sparse_cross_hashed", crossed_columns.crossed),
            (sparse_ops, "sparse_reshape", feature_columns.reshaped),
            (
                embedding_ops,
                "safe_embedding_lookup_sparse",
                feature_columns.looked_up,
            ),
        ):
            new = adapt(getattr(owner, name))
            stack.enter_context(_replaced(owner, name, new))
        yield


_TO_SPARSE = "_to_sparse_input_and_drop_ignore_values"
_TO_IDS = "_transform_input_tensor"


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Has an owner another value of an attribute in a `with` block."""
    known = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, known)


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Runs TensorFlow eagerly in a `with` block, whatever was disabled."""
    from tensorflow.python.eager import context

    with context.eager_mode():
        yield


@contextlib.contextmanager
def functions_known(functions: Sequence[Any]) -> Iterator[None]:
    """Lets the bridge to XLA find functions in a `with` block.

    Those of a graph that is imported are known to that graph alone.

    Args:
        functions: Protocol buffers.
    """
    from tensorflow.python.eager import context

    eager = context.context()
    eager.ensure_initialized()
    for function in functions:
        eager.add_function_def(function)
    try:
        yield
    finally:
        for function in functions:
            eager.remove_function(function.signature.name)


@contextlib.contextmanager
def whole_variables() -> Iterator[None]:
    """Has variables be whole in a `with` block, whatever partitioners say.

    Checkpoints have them whole, too, under the same names.
    """
    from tensorflow.python.ops import variable_scope

    store = variable_scope._VariableStore
    original = store.get_variable

    def get_variable(
        store: Any, *args: Any, partitioner: Any = None, **kwargs: Any
    ) -> Any:
        del partitioner
        return original(store, *args, **kwargs)

    with _replaced(store, "get_variable", get_variable):
        yield


def saved_names(saver: Any) -> dict[str, str]:
    """The names of variables by those that a `tf.train.Saver` has for them."""
    variables = saver._var_list
    if not isinstance(variables, dict):
        variables = {each.op.name: each for each in variables or ()}
    return {
        name: each.op.name
        for name, each in variables.items()
        if hasattr(each, "op")
    }


def stablehlo_of(hlo: bytes) -> bytes:
    """The StableHLO of an HLO module, both serialized."""
    module: bytes = jax_mlir.hlo_to_stablehlo(hlo)
    return module


def signature_of(module: bytes) -> tuple[list[str], list[str]]:
    """The types of what a module takes and returns, as MLIR writes them."""
    with mlir.make_ir_context():
        inputs, results = _main_types(ir.Module.parse(module))
        return [str(t) for t in inputs], [str(t) for t in results]


def _main_types(module: Any) -> tuple[list[Any], list[Any]]:
    main: Any = ir.SymbolTable(module.operation)["main"]
    return list(main.type.inputs), list(main.type.results)


def op_names(module: bytes) -> list[str]:
    """The ops of a module, with the target of each custom call."""
    with mlir.make_ir_context():
        return [_name(op) for op in _operations(ir.Module.parse(module))]


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
    """Has JAX lower a primitive by a function.

    Args:
        primitive: The primitive.
        lower: Called with the context, operands and parameters; returns the
            results.
        platform: For which kind of devices, such as "cpu". Defaults to all
            that have none of their own.
    """
    mlir.register_lowering(primitive, lower, platform=platform)


def inlined(
    context: Any,
    module: bytes,
    name: str,
    operands: Sequence[Any],
    replacement: Callable[[Any], Callable[..., jax.Array] | None],
) -> list[Any]:
    """Calls a module inside the one that JAX is lowering.

    Args:
        context: What JAX gave the lowering.
        module: The module.
        name: What it is to be called.
        operands: Its operands. Their width is made to fit.
        replacement: Given an operation of the module, returns a function of its
            operands for JAX to put in its place, or `None` to leave it.

    Returns:
        Its results as JAX has them, as many as it expects.
    """
    parsed = ir.Module.parse(module)
    for number, op in enumerate(list(_operations(parsed))):
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
    wanted = [_type_of(aval) for aval in context.avals_out]
    return [_as(t, x) for t, x in zip(wanted, results, strict=False)]


_BY_JAX = "kte_by_jax"


def _as(kind: Any, value: Any) -> Any:
    """A value of a type: 64-bit numbers stay so inside, if not in JAX."""
    return value if value.type == kind else stablehlo.convert(kind, value)


def _replace(
    context: Any,
    module: ir.Module,
    name: str,
    op: Any,
    function: Callable[..., jax.Array],
) -> None:
    """Puts what JAX makes of a function in place of an operation."""
    (result,) = op.results
    kinds = [operand.type for operand in op.operands]
    own = context.replace(
        primitive=None,
        avals_in=[aval_of(str(kind)) for kind in kinds],
        avals_out=[aval_of(str(result.type))],
    )
    lower = mlir.lower_fun(function, multiple_results=False)
    # In a function of its own: not all JAX releases write where they are told.
    begin = ir.InsertionPoint.at_block_begin(module.body)
    with op.location:
        made: Any = func.FuncOp(name, (kinds, [result.type]), ip=begin)
        made.attributes["sym_visibility"] = ir.StringAttr.get("private")
        block = made.add_entry_block()
        with ir.InsertionPoint(block):
            func.ReturnOp(jax.tree.leaves(lower(own, *block.arguments)))
        with ir.InsertionPoint(op):
            reference = ir.FlatSymbolRefAttr.get(name)
            call = func.CallOp([result.type], reference, list(op.operands))
    result.replace_all_uses_with(call.results[0])
    op.erase()


@functools.cache
def aval_of(kind: str) -> jax.core.ShapedArray:
    """The shape and dtype, as JAX has it, of a type that MLIR has written.

    Raises:
        ValueError: The shape is not fixed.
    """
    with mlir.make_ir_context():
        parsed = ir.RankedTensorType(ir.Type.parse(kind))
        if not parsed.has_static_shape or "bounds" in kind:
            raise ValueError(f"Expected a fixed shape. Received: {kind}")
        dtype = DTYPES[str(parsed.element_type)]
        shape = tuple(parsed.shape)
    return jax.core.ShapedArray(shape, jax.dtypes.canonicalize_dtype(dtype))


def _type_of(aval: Any) -> Any:
    """The type of a tensor. JAX has a function, but of changing arguments."""
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
    """All operations inside a module or an operation."""
    for region in op.operation.regions:
        for block in region:
            for inner in block:
                yield inner.operation
                yield from _operations(inner)
