"""Errors about operations that no device can run, or that XLA cannot compile."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keras_tpu_estimator.tf1.graph import internals
from keras_tpu_estimator.tf1.graph.definitions import (
    LOOPS,
    Body,
    Library,
    Node,
    nodes_within,
    reachable,
)
from keras_tpu_estimator.tf1.graph.source_lines import line_of
from keras_tpu_estimator.tf1.lift import jax_internals, random_ops, replaced_ops
from keras_tpu_estimator.tf1.lift.effects import PASSING_ON


def where_to_move(ops: Sequence[Any]) -> str:
    """Returns advice on where to move operations of a graph."""
    is_one = len(ops) == 1
    these, it, its = ("This operation", "it", "its") if is_one else _PLURAL
    if not any(map(_needs_variables, ops)):
        return (
            f"{these} can run before the model: move {it} into input_fn, which runs "
            f"on the host, and return {its} results as features."
        )
    return (
        f"{these} cannot move into input_fn, because {its} inputs depend on "
        f"variables. Replace {it} by other operations. If only metrics or "
        f"predictions need {its} results, pass {its} inputs to metric_fn or "
        "host_call, which run on the host, or compute them from what predict "
        "yields."
    )


_PLURAL = "These operations", "them", "their"


def _needs_variables(op: Any) -> bool:
    return any(o.type == "VarHandleOp" for o in reachable(op.graph, [op]))


_OF_PYTHON = ("EagerPyFunc", "PyFunc", "PyFuncStateless")
# XLA lacks these operations.
_SUPPRESSIONS = (
    "CombinedNonMaxSuppression",
    "NonMaxSuppression",
    "NonMaxSuppressionV2",
    "NonMaxSuppressionV5",
    "NonMaxSuppressionWithOverlaps",
)
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
    reasons = {}
    for op in ops:
        reason = reason_against(op, nodes[op.name], library)
        if reason is not None:
            reasons[op] = f"{op.name}, {reason}, made at {line_of(op)}"
    if reasons:
        shown = "; ".join([*reasons.values()][:5])
        raise ValueError(
            "model_fn must contain only operations that a device can run. "
            f"Received {len(reasons)} others: {shown}. {where_to_move([*reasons])}"
        )


def reason_against(op: Any, node: Node, library: Library) -> str | None:
    """Returns the reason why no device can run an operation, or `None`."""
    reasons = [_reason(inner) for inner in nodes_within(node, library)]
    return next(filter(None, [*reasons, _of_tensors(op)]), None)


def is_for_host(op: Any, node: Node, library: Library) -> bool:
    """Returns whether an operation has strings, a lookup table or Python.

    Some kinds of non-maximum suppression, which scripts use after the model, also run
    only on the host.
    """
    import tensorflow as tf

    tensors = (*op.inputs, *op.outputs)
    has_strings = any(tensor.dtype == tf.string for tensor in tensors)
    return (
        (has_strings and op.type not in _MAY_HAVE_STRINGS)
        or op.type.startswith(("HashTable", "LookupTableFind"))
        or op.type in _SUPPRESSIONS
        or any(inner.op in _OF_PYTHON for inner in nodes_within(node, library))
    )


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
    if node.op in _SUPPRESSIONS:
        return f"a {node.op}, which XLA lacks"
    if node.op in _REFS:
        return f"a {node.op}, which is not a resource variable"
    if node.op in random_ops.UNSUPPORTED:
        return f"a {node.op}, whose numbers no seed can repeat"
    if node.op in replaced_ops.UNSUPPORTED:
        return f"a {node.op}. CrossReplicaSum is the only supported collective"
    return None


def _of_tensors(op: Any) -> str | None:
    import tensorflow as tf

    # A step does not compute the tensors that `tf.Print` prints.
    inputs = op.inputs[:1] if op.type == "Print" else op.inputs
    tensors = (*inputs, *op.outputs)
    has_strings = any(tensor.dtype == tf.string for tensor in tensors)
    if has_strings and op.type not in _MAY_HAVE_STRINGS:
        return f"a {op.type} with strings"
    resources = [t for t in tensors if t.dtype == tf.resource]
    if any(tensor.op.type not in _VARIABLES for tensor in resources):
        return f"a {op.type} with a resource that is not a variable"
    return None


_UNBOUNDED = "fixed tensor list size"
_GROWING = "Input and output shapes of loop body do not match"


def explained_loop(text: str, ops: Sequence[Any]) -> ValueError | None:
    """Returns an error that names the loops that XLA cannot compile, if any."""
    loops = [op for op in ops if op.type in LOOPS]
    if _UNBOUNDED in text:
        faulty = [op for op in loops if _is_unbounded(op)]
        must = (
            "A loop must have a known number of rounds if its gradient is "
            "taken or if it grows a TensorArray."
        )
        advice = "Pass `maximum_iterations=` to tf.while_loop."
    elif _GROWING in text:
        faulty = [op for op in loops if _is_growing(op)]
        must = "The tensors of a loop must keep their shapes."
        advice = (
            "Pad them to their final size before the loop, and write each "
            "round's values at its position, such as with a TensorArray."
        )
    else:
        return None
    if not faulty:
        return None
    names = [f"{op.name}, made at {line_of(op)}" for op in faulty]
    return ValueError(f"{must} Received: {'; '.join(names)}. {advice}")


def _is_unbounded(loop: Any) -> bool:
    """Returns whether the number of rounds of a loop is unknown."""
    return bool(internals.static_value(loop.inputs[1]) == -1)


def _is_growing(loop: Any) -> bool:
    """Returns whether tensors of a loop have unknown shapes."""
    return any(not output.shape.is_fully_defined() for output in loop.outputs)


_MISSING = r"No registered '(\w+)' OpKernel"
_ATTRIBUTES = r"attributes didn't match\) Requested Attributes: ([^)}]*)"
_CONSTANT = r"Input (\d+) to node `([^`]+)` with op \w+ must be a compile-time"
_NODE = r"\{\{node ([^}]+)\}\}|\[\[([^\]{]+)\]\]"
# Parts of messages that do not concern the user's code.
_NOISE = (
    r"^Failed getting HLO text: '",
    r"\s*tf2xla conversion failed while converting [^']*?compiled functions\.",
    r"\s*(Stack trace for op definition|The op is created at):\s*"
    r"dummy_file_name:\d+:dummy_function_name",
    r"'$",
)


def explained(
    error: Exception, ops: Sequence[Any], body: Body, library: Library
) -> ValueError:
    """Returns an error about a graph that TensorFlow or MLIR has failed to compile."""
    text = str(error)
    about_loops = explained_loop(text, ops)
    if about_loops is not None:
        return about_loops
    by_name = {op.name: op for op in ops}
    kinds = {*re.findall(_MISSING, text)}
    names = {name for pair in re.findall(_NODE, text) for name in pair if name}
    descriptions = _described(body, library, kinds, set() if kinds else names)
    lines = [
        f"{what}, made at {line_of(by_name[name])}"
        for name, what in descriptions.items()
        if name in by_name
    ]
    used = [by_name[name] for name in descriptions if name in by_name]
    what = "; ".join(lines[:5]) or _suspects(ops)
    advice = _advice(text, kinds, used)
    return ValueError(
        f"TensorFlow's bridge to XLA cannot compile {what}. {advice} "
        f"XLA's message: {_without_noise(text)}"
    )


def _suspects(ops: Sequence[Any]) -> str:
    """Describes what a message without names may mean."""
    unknown = [
        op for op in ops if any(not o.shape.is_fully_defined() for o in op.outputs)
    ]
    if not unknown:
        return "an operation of model_fn"
    # Later shapes are unknown because the first one is.
    op = unknown[0]
    return (
        f"an operation of model_fn, perhaps {op.name} ({op.type}), whose shape "
        f"depends on values, made at {line_of(op)}"
    )


def _described(
    body: Body, library: Library, kinds: set[str], names: set[str]
) -> Mapping[str, str]:
    """Describes nodes of some kinds or names, by the top-level node that has them."""

    def matching() -> Iterator[tuple[Any, Any]]:
        for node in body.nodes:
            for inner in nodes_within(node, library):
                original_name = inner.name.partition("/kte_")[0]
                if inner.op in kinds or original_name in names:
                    yield node, inner

    descriptions: dict[str, str] = {}
    for node, inner in matching():
        within = "" if inner is node else f" in {node.name} ({node.op})"
        descriptions.setdefault(node.name, f"{inner.name} ({inner.op}){within}")
    return descriptions


def _advice(text: str, kinds: set[str], ops: Sequence[Any]) -> str:
    constant = re.search(_CONSTANT, text)
    if constant:
        return (
            f"Input {constant[1]} of {constant[2]} is a shape, a size or an axis "
            "that depends on values, which XLA does not know when it "
            "compiles. Compute it from static shapes such as `x.shape`, or "
            "from numbers in `params`."
        )
    attributes = re.search(_ATTRIBUTES, text)
    if attributes:
        requested = attributes[1].strip()
        other = "tf.int32" if "=DT_FLOAT" in requested else "tf.float32"
        return (
            f"XLA has the operation, but not with {requested}. "
            f"Cast its inputs to another dtype, such as {other}."
        )
    if kinds and ops:
        them = "it" if len(ops) == 1 else "them"
        return f"XLA, the compiler of the devices, lacks {them}. {where_to_move(ops)}"
    return (
        "Write this part with other operations, or with shapes that do not "
        "depend on values."
    )


def _without_noise(text: str) -> str:
    for pattern in _NOISE:
        text = re.sub(pattern, "", text)
    return text.strip()
