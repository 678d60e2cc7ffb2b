"""Operations of hooks that run on the host between two runs of the device loop."""

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.base.common.tensorflow_session import host_session
from keras_tpu_estimator.engine.program.store import EVAL_STEP, GLOBAL_STEP
from keras_tpu_estimator.tf1.graph.definitions import Body, definition_of, reachable
from keras_tpu_estimator.tf1.graph.inner_ops import check_outside
from keras_tpu_estimator.tf1.graph.model_graph import ModelGraph
from keras_tpu_estimator.tf1.graph.sessions import load_values
from keras_tpu_estimator.tf1.lift.effects import effects_of


@dataclasses.dataclass(frozen=True, eq=False)
class HostRun:
    """Operations that assign variables, and need no inputs of a step.

    Attributes:
        fetches: A pytree of operations, tensors, variables and names.
        names: The variables that are used.
        assigned: The variables that may be assigned.
    """

    fetches: Any
    feed_dict: Mapping[Any, Any]
    model: ModelGraph
    names: Sequence[str]
    assigned: Sequence[str]

    def run(self, values: Mapping[str, Any]) -> tuple[Any, dict[str, np.ndarray]]:
        """Runs the operations, and returns the fetched and the assigned values."""
        variables = self.model.variables
        with host_session(self.model.graph) as session:
            variable_values = {name: values[name] for name in self.names}
            load_values(session, variables, variable_values)
            fetched = session.run(self.fetches, dict(self.feed_dict))
            assigned = session.run({n: variables[n] for n in self.assigned})
        return fetched, assigned


def host_run(
    model: ModelGraph, fetches: Any, feed_dict: Mapping[Any, Any] | None
) -> HostRun | None:
    """Returns a run for the fetches of a hook, if it needs no inputs of a step.

    A run that only reads variables needs no session. See `of_variables`.
    """
    leaves = [element_of(model.graph, leaf) for leaf in jax.tree.leaves(fetches)]
    elements = [element for element in leaves if element is not None]
    run = of_variables(model, fetches, elements, feed_dict or {})
    if (
        run is None
        or not (run.assigned or feed_dict)
        or len(elements) < len(leaves)
        or not model.variables.keys() >= {*run.names}
    ):
        return None
    # Only the loop increments these counters.
    counted = (GLOBAL_STEP, EVAL_STEP)
    assigned = [name for name in run.assigned if name not in counted]
    return dataclasses.replace(run, assigned=assigned)


def of_variables(
    model: ModelGraph,
    fetches: Any,
    elements: Sequence[Any],
    feed_dict: Mapping[Any, Any] = types.MappingProxyType({}),
    needs_inputs: bool = False,
) -> HostRun | None:
    """Returns a run of fetches, or `None` if they need the inputs of a step, or not."""
    definition = definition_of(model.graph)
    ops = reachable(model.graph, elements)
    of_steps = {tensor.op.name for tensor in model.inputs}
    if any(op.name in of_steps for op in ops) != needs_inputs:
        return None
    names = [op.name for op in ops if op.type == "VarHandleOp"]
    body = Body([definition.nodes[op.name] for op in ops], [], names)
    assigned = effects_of(body, definition.library).last_writes
    return HostRun(fetches, feed_dict, model, names, [*assigned])


def element_of(graph: Any, leaf: Any) -> Any:
    """Returns the fetched operation or tensor, or `None` for a name of this package.

    The graph raises an error for other values and for other graphs.
    """
    import tensorflow as tf

    element = leaf
    if not isinstance(leaf, tf.Operation) and not tf.is_tensor(leaf):
        try:
            element = graph.as_graph_element(leaf)
        except (KeyError, ValueError, TypeError):
            if not isinstance(leaf, str):
                raise
            return None
    check_outside("What a hook fetches", graph, element)
    # A variable is returned as the operation of its handle.
    return element.op if hasattr(element, "handle") else element
