"""Operations that hooks run between steps to assign variables.

They run on the host between two runs of the device loop. For example, a hook restores
averages before an evaluation. The next step starts with the assigned values.
"""

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.engine.program.store import EVAL_STEP, GLOBAL_STEP
from keras_tpu_estimator.ground.base.tensorflow_session import host_session
from keras_tpu_estimator.tf1.definitions import definition_of, reachable
from keras_tpu_estimator.tf1.effects import effects_of
from keras_tpu_estimator.tf1.functions import Body
from keras_tpu_estimator.tf1.graph import ModelGraph
from keras_tpu_estimator.tf1.inside import check_outside
from keras_tpu_estimator.tf1.sessions import load_values


@dataclasses.dataclass(frozen=True, eq=False)
class HostRun:
    """Operations that assign variables, and need no inputs of a step.

    Attributes:
        fetches: A pytree of operations, tensors, variables and names.
        feed_dict: The fed values.
        model: The graph.
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
            own = {name: values[name] for name in self.names}
            load_values(session, variables, own)
            fetched = session.run(self.fetches, dict(self.feed_dict))
            assigned = session.run({n: variables[n] for n in self.assigned})
        return fetched, assigned


def host_run(
    model: ModelGraph, fetches: Any, feed_dict: Mapping[Any, Any] | None
) -> HostRun | None:
    """Returns a run for the fetches of a hook, if it needs no inputs of a step.

    A run that only reads variables needs no session. See `of_variables`.
    """
    leaves = [element_of(model.graph, each) for each in jax.tree.leaves(fetches)]
    elements = [each for each in leaves if each is not None]
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
) -> HostRun | None:
    """Returns a run of fetches, or `None` if they need the inputs of a step."""
    known = definition_of(model.graph)
    ops = reachable(model.graph, elements)
    of_steps = {each.op.name for each in model.inputs}
    if any(op.name in of_steps for op in ops):
        return None
    names = [op.name for op in ops if op.type == "VarHandleOp"]
    body = Body([known.nodes[op.name] for op in ops], [], names)
    assigned = effects_of(body, known.library).last_writes
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
