"""The values of variables in TensorFlow sessions."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from keras_tpu_estimator.base.common.tensorflow_session import host_session
from keras_tpu_estimator.tf1.graph.definitions import Body, definition_of, reachable
from keras_tpu_estimator.tf1.graph.source_lines import line_of
from keras_tpu_estimator.tf1.lift.effects import effects_of


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
    """Returns a placeholder and the operation that assigns its value to a variable.

    A variable's own initializer cannot always be fed.
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


@dataclasses.dataclass(frozen=True, eq=False)
class LocalInit:
    """A `local_init_op`, and its feed dict."""

    op: Any
    feed_dict: Mapping[Any, Any] | None

    def values(
        self,
        variables: Mapping[str, Any],
        local: Mapping[str, Any],
        values: Mapping[str, Any],
        names: Collection[str],
    ) -> dict[str, Any]:
        """Returns the values that the operation assigns to the local variables `names`.

        `values` are those of the model's variables, which the operation may read
        but not assign.
        """
        graph = self.op.graph
        read = {n: values[n] for n in self._names(variables) if n in variables}
        with host_session(graph) as session:
            load_values(session, variables, read)
            session.run([variable.initializer for variable in local.values()])
            session.run(self.op, self.feed_dict)
            assigned: dict[str, Any] = session.run({n: local[n] for n in names})
        return assigned

    def _names(self, variables: Mapping[str, Any]) -> list[str]:
        """Returns the names of variables that it reads or assigns."""
        definition = definition_of(self.op.graph)
        ops = reachable(self.op.graph, [self.op])
        names = [op.name for op in ops if op.type == "VarHandleOp"]
        body = Body([definition.nodes[op.name] for op in ops], [], names)
        assigned = effects_of(body, definition.library).last_writes
        model_variables = sorted(assigned.keys() & variables.keys())
        if model_variables:
            op = getattr(self.op, "op", self.op)
            raise NotImplementedError(
                "The `local_init_op` of a Scaffold must assign only local "
                "variables, because the others have the values of the "
                f"checkpoint. Received: {op.name}, made at {line_of(op)}, "
                f"which assigns {model_variables}. Move these assignments to `init_op` "
                "or `init_fn`."
            )
        return names
