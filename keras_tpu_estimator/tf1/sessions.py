"""Assigning values to variables in TensorFlow sessions."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def load_values(
    session: Any, variables: Mapping[str, Any], values: Mapping[str, Any]
) -> None:
    """Assigns values to variables, or to their resources, by name."""
    loaders = {name: loader_of(variables[name]) for name in values}
    session.run(
        [assign for _, assign in loaders.values()],
        {loaders[n][0]: np.asarray(value) for n, value in values.items()},
    )


def loader_of(variable: Any) -> tuple[Any, Any]:
    """Returns a placeholder, and the operation that assigns it to a variable.

    The initializer of a variable cannot always be fed.
    """
    import tensorflow as tf

    handle = getattr(variable, "handle", variable)
    graph, name = handle.graph, f"kte_load/{handle.op.name}"
    if not _has(graph, f"{name}/assign"):
        with graph.as_default(), graph.control_dependencies(None):
            dtype = handle.op.get_attr("dtype")
            with tf.name_scope(f"{name}/"):
                value = tf.compat.v1.placeholder(dtype, name="value")
                tf.raw_ops.AssignVariableOp(resource=handle, value=value, name="assign")
    return (
        graph.get_tensor_by_name(f"{name}/value:0"),
        graph.get_operation_by_name(f"{name}/assign"),
    )


def _has(graph: Any, name: str) -> bool:
    try:
        graph.get_operation_by_name(name)
    except KeyError:
        return False
    return True
