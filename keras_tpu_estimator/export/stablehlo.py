"""JAX's lowered modules in the form that TensorFlow's runtime reads."""

import contextlib
import re
from collections.abc import Iterable, Iterator

from jax.extend.mlir import ir, passmanager
from jax.extend.mlir.dialects import chlo, func, sdy, stablehlo

# The first is old enough for each TensorFlow that can call JAX's modules. The last
# is new enough for all operations of JAX except composites.
_VERSIONS = ("1.9.0", "1.13.0")

# The LAPACK routines that JAX calls, whose wrappers TensorFlow lacks.
_LINEAR_ALGEBRA = {
    "potrf": "cholesky",
    "getrf": "lu (solve, inv, det)",
    "geqrf": "qr",
    "geqp3": "qr",
    "orgqr": "qr",
    "ungqr": "qr",
    "gesdd": "svd",
    "gesvd": "svd",
    "syevd": "eigh",
    "heevd": "eigh",
    "geev": "eig",
    "gees": "schur",
    "gehrd": "hessenberg",
    "trsm": "triangular_solve",
}


class UnservableError(ValueError):
    """TensorFlow's servers cannot run an operation of the model.

    Args:
        message: The operation, and a workaround.
    """


def for_tensorflow(module: bytes) -> bytes:
    """Returns a portable StableHLO artifact in a form that TensorFlow reads.

    Newer releases of JAX lower some functions (erf, top_k) to composite operations,
    which TensorFlow cannot read or cannot run with open dimensions. Each becomes a call
    of its decomposition. `UnservableError` names an operation that TensorFlow lacks.
    """
    with _parsed(module) as parsed:
        operations = list(_operations(parsed.body))
        _check_custom_calls(operations)
        for operation in operations:
            _forget_shardings(operation)
            if operation.name == "stablehlo.composite":
                _call_instead(operation)
        return _serialized(parsed)


def without_lines(module: bytes) -> bytes:
    """Returns the same module without names and lines of source files."""
    with _parsed(module) as parsed:
        strip = passmanager.PassManager.parse("builtin.module(strip-debuginfo)")
        strip.run(parsed.operation)
        return _serialized(parsed)


@contextlib.contextmanager
def _parsed(module: bytes) -> Iterator[ir.Module]:
    """Parses a portable artifact in a separate context."""
    with ir.Context() as context, ir.Location.unknown():
        stablehlo.register_dialect(context)
        chlo.register_dialect(context)
        sdy.register_dialect(context)
        yield stablehlo.deserialize_portable_artifact(context, module)


def _operations(block: ir.Block) -> Iterator[ir.Operation]:
    for operation in block.operations:
        for region in operation.operation.regions:
            for inner in region.blocks:
                yield from _operations(inner)
        yield operation.operation


def _call_instead(composite: ir.Operation) -> None:
    """Replaces a composite operation by a call of its decomposition."""
    call = func.CallOp(
        [result.type for result in composite.results],
        ir.FlatSymbolRefAttr(composite.attributes["decomposition"]),
        list(composite.operands),
        ip=ir.InsertionPoint(composite),
    )
    for old, new in zip(composite.results, call.operation.results, strict=True):
        old.replace_all_uses_with(new)
    composite.erase()


def _forget_shardings(operation: ir.Operation) -> None:
    """Removes shardings, which TensorFlow's runtime does not support."""
    # In some releases of JAX these are names, in others they have names.
    attributes = operation.attributes
    names = [getattr(attribute, "name", attribute) for attribute in attributes]
    for name in names:
        if name.startswith("sdy."):
            del operation.attributes[name]


def _check_custom_calls(operations: Iterable[ir.Operation]) -> None:
    targets = {
        ir.StringAttr(operation.attributes["call_target_name"]).value
        for operation in operations
        if operation.name == "stablehlo.custom_call"
    }
    missing = sorted(_shown(name) for name in targets if "lapack_" in name)
    if missing:
        raise UnservableError(
            "An exported model must not use JAX's linear algebra, which "
            f"TensorFlow cannot run. Received: {', '.join(missing)}. Compute it "
            "in the receiver function or with kte.outside_compilation and "
            "tf.linalg, or omit it from the predictions."
        )


def _shown(target: str) -> str:
    routine = re.sub(r"^lapack_[sdcz]|_ffi$", "", target)
    description = _LINEAR_ALGEBRA.get(routine)
    return f"{description} ({target})" if description else target


def _serialized(module: ir.Module) -> bytes:
    for version in _VERSIONS:
        try:
            return stablehlo.serialize_portable_artifact(module, version)
        except ValueError as error:
            # MLIR's diagnostics name the operation.
            reason = error
    raise UnservableError(
        "An exported model must consist of operations of StableHLO "
        f"{_VERSIONS[-1]}, because TensorFlow lacks newer ones. Received: {reason}. "
        "Use other functions, or install an older JAX."
    ) from reason
