"""Errors of graph conversion, which name the operation and the user's line."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keras_tpu_estimator.tf1.functions import Body, Library, nodes_within
from keras_tpu_estimator.tf1.loop_errors import explained_loop
from keras_tpu_estimator.tf1.moving import where_to_move
from keras_tpu_estimator.tf1.source_lines import line_of

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
    """Returns an error about a graph that TensorFlow cannot compile.

    Args:
        error: The error of TensorFlow or MLIR.
        ops: The operations of the graph.
        body: The nodes of the same operations.
        library: The functions that they call.
    """
    text = str(error)
    about_loops = explained_loop(text, ops)
    if about_loops is not None:
        return about_loops
    by_name = {op.name: op for op in ops}
    kinds = {*re.findall(_MISSING, text)}
    names = {name for pair in re.findall(_NODE, text) for name in pair if name}
    found = _found(body, library, kinds, set() if kinds else names)
    places = [
        f"{what}, made at {line_of(by_name[name])}"
        for name, what in found.items()
        if name in by_name
    ]
    used = [by_name[name] for name in found if name in by_name]
    what = "; ".join(places[:5]) or "operations of model_fn"
    advice = _advice(text, kinds, used)
    return ValueError(
        f"TensorFlow's bridge to XLA cannot compile {what}. {advice} "
        f"XLA's message: {_without_noise(text)}"
    )


def _found(
    body: Body, library: Library, kinds: set[str], names: set[str]
) -> Mapping[str, str]:
    """Describes nodes of some kinds or names, by the top-level node that has them."""

    def matching() -> Iterator[tuple[Any, Any]]:
        for node in body.nodes:
            for inner in nodes_within(node, library):
                own = inner.name.partition("/kte_")[0]
                if inner.op in kinds or own in names:
                    yield node, inner

    found: dict[str, str] = {}
    for node, inner in matching():
        within = "" if inner is node else f" in {node.name} ({node.op})"
        found.setdefault(node.name, f"{inner.name} ({inner.op}){within}")
    return found


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
        return (
            f"XLA has the operation, but not with {attributes[1].strip()}. "
            "Cast its inputs to another dtype, such as tf.float32."
        )
    if kinds and ops:
        return f"XLA does not have {_list(kinds)}. {where_to_move(ops)}"
    return (
        "Write this part with other operations, or with shapes that do not "
        "depend on values."
    )


def _list(kinds: set[str]) -> str:
    return ", ".join(sorted(kinds))


def _without_noise(text: str) -> str:
    for pattern in _NOISE:
        text = re.sub(pattern, "", text)
    return text.strip()
