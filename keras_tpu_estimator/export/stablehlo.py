"""What JAX lowers to, in the form that TensorFlow's runtime can read."""

import contextlib
import re
from collections.abc import Iterable, Iterator

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import chlo, func, sdy, stablehlo

# Old enough for any TensorFlow that can call modules of JAX, and new enough
# for all that JAX lowers to beside composites.
_VERSIONS = ("1.9.0", "1.13.0")

# The routines of LAPACK that JAX calls; TensorFlow does not have its wrappers.
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
        message: The operation, and a way to do without it.
    """


def for_tensorflow(module: bytes) -> bytes:
    """The same module, as TensorFlow can read it.

    Newer releases of JAX lower some functions (erf, top_k) to composite ops,
    which TensorFlow cannot read or cannot run with open dimensions. Each
    becomes a call of the function that it is composed of.

    Args:
        module: A portable artifact of StableHLO.

    Raises:
        UnservableError: It has ops that TensorFlow does not have.
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
    """The same module without names and lines of source files.

    Args:
        module: What `for_tensorflow` returned.
    """
    with _parsed(module) as parsed:
        strip = passmanager.PassManager.parse("builtin.module(strip-debuginfo)")
        strip.run(parsed.operation)
        return _serialized(parsed)


@contextlib.contextmanager
def _parsed(module: bytes) -> Iterator[ir.Module]:
    """A portable artifact, in a context of its own."""
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
    """Replaces a composite op by a call of its decomposition."""
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
    """Removes hints for several devices; TensorFlow's runtime has none."""
    # Releases of JAX differ in whether these are names or have names.
    names = [getattr(each, "name", each) for each in operation.attributes]
    for name in names:
        if name.startswith("sdy."):
            del operation.attributes[name]


def _check_custom_calls(operations: Iterable[ir.Operation]) -> None:
    found = {
        ir.StringAttr(operation.attributes["call_target_name"]).value
        for operation in operations
        if operation.name == "stablehlo.custom_call"
    }
    missing = sorted(_shown(name) for name in found if "lapack_" in name)
    if missing:
        raise UnservableError(
            "The model uses linear algebra that TensorFlow cannot run for "
            f"JAX: {', '.join(missing)}. Compute it in the receiver function "
            "or with kte.outside_compilation and tf.linalg, "
            "or leave it out of the predictions."
        )


def _shown(target: str) -> str:
    routine = re.sub(r"^lapack_[sdcz]|_ffi$", "", target)
    known = _LINEAR_ALGEBRA.get(routine)
    return f"{known} ({target})" if known else target


def _serialized(module: ir.Module) -> bytes:
    for version in _VERSIONS:
        try:
            return stablehlo.serialize_portable_artifact(module, version)
        except ValueError as error:
            # The diagnostics of MLIR hold the op.
            reason = error
    raise UnservableError(
        "The model has ops that are too new for TensorFlow. Expected ops of "
        f"StableHLO {_VERSIONS[-1]}. Received: {reason}. Compute these with "
        "other functions, or install an older JAX."
    ) from reason
