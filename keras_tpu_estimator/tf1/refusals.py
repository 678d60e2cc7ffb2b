"""Errors about operations that no device can run, with the user's lines."""

from collections.abc import Mapping, Sequence
from typing import Any

from keras_tpu_estimator.tf1 import collectives, jax_internals, random_ops
from keras_tpu_estimator.tf1.effects import PASSING_ON
from keras_tpu_estimator.tf1.functions import Library, Node, nodes_within
from keras_tpu_estimator.tf1.moving import where_to_move
from keras_tpu_estimator.tf1.source_lines import line_of

_OF_PYTHON = ("EagerPyFunc", "PyFunc", "PyFuncStateless")
_REFS = ("TemporaryVariable", "Variable", "VariableV2")
# Tensors of strings are harmless here, because the bridge removes assertions.
_MAY_HAVE_STRINGS = ("Assert", "Const")
# Custom calls that XLA expands for every kind of device.
_EXPANDED = {"Eigh", "ProductOfElementaryHouseholderReflectors", "Qr"}
_WIDEST = "complex<f64>"
_VARIABLES = PASSING_ON | {"VarHandleOp"}


def check_can_run(
    ops: Sequence[Any], nodes: Mapping[str, Node], library: Library
) -> None:
    """Raises an error if no device can run an operation of a step."""
    found = {}
    for op in ops:
        reason = reason_against(op, nodes[op.name], library)
        if reason is not None:
            found[op] = f"{op.name}, {reason}, made at {line_of(op)}"
    if found:
        shown = "; ".join([*found.values()][:5])
        raise ValueError(
            "model_fn must contain only operations that a device can run. "
            f"Received {len(found)} others: {shown}. {where_to_move([*found])}"
        )


def reason_against(op: Any, node: Node, library: Library) -> str | None:
    """Returns the reason why no device can run an operation, or `None`."""
    reasons = [_reason(each) for each in nodes_within(node, library)]
    return next(filter(None, [*reasons, _of_tensors(op)]), None)


def check_platform(module: bytes, platform: str) -> None:
    """Raises an error if XLA cannot compile a module for a platform, such as "cpu".

    Some custom calls work only on a CPU, and complex128 ends the process on a TPU.
    """
    prefix = "stablehlo.custom_call "
    names = jax_internals.op_names(module)
    calls = {n.removeprefix(prefix) for n in names if n.startswith(prefix)}
    unknown = sorted(calls - _EXPANDED)
    if unknown and platform != "cpu":
        raise ValueError(
            "model_fn must contain only operations that run on "
            f"{platform!r}. Received operations that TensorFlow compiles only "
            f"for a CPU, with calls of {unknown}."
        )
    wide = _WIDEST in jax_internals.element_types(module)
    if wide and platform == "tpu":
        raise ValueError(
            "model_fn must not have tensors of complex128 on a TPU. Cast them "
            "to complex64 with tf.cast."
        )


def _reason(node: Node) -> str | None:
    if node.op in _OF_PYTHON:
        return f"a {node.op}, which calls Python"
    if node.op in _REFS:
        return f"a {node.op}, which is not a resource variable"
    if node.op in random_ops.UNSUPPORTED:
        return f"a {node.op}, whose numbers no seed can repeat"
    if node.op in collectives.UNSUPPORTED:
        return f"a {node.op}. CrossReplicaSum is the only supported collective"
    return None


def _of_tensors(op: Any) -> str | None:
    import tensorflow as tf

    tensors = (*op.inputs, *op.outputs)
    has_strings = any(tensor.dtype == tf.string for tensor in tensors)
    if has_strings and op.type not in _MAY_HAVE_STRINGS:
        return f"a {op.type} with strings"
    resources = [t for t in tensors if t.dtype == tf.resource]
    if any(tensor.op.type not in _VARIABLES for tensor in resources):
        return f"a {op.type} with a resource that is not a variable"
    return None
