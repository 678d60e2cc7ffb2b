"""Advice for operations that no device can run."""

from collections.abc import Sequence
from typing import Any

from keras_tpu_estimator.tf1.definitions import reachable


def where_to_move(ops: Sequence[Any]) -> str:
    """Returns advice on where to move operations of a graph."""
    if not any(map(_needs_variables, ops)):
        return (
            "They need no variables: move them into input_fn, which runs on "
            "the host, and return their results as features."
        )
    return (
        "They need variables, so input_fn cannot run them: write them with "
        "other operations. If only metrics or predictions need them, pass "
        "their inputs to metric_fn or host_call, which run on the host, or "
        "compute them from what predict yields."
    )


def _needs_variables(op: Any) -> bool:
    return any(o.type == "VarHandleOp" for o in reachable(op.graph, [op]))
