"""What hooks run besides the steps: operations that assign variables.

They run on the host, between two runs of the device loop: a hook that restores
averages before an evaluation, say. What they assign the next step begins with.
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
    """Operations that assign variables, and need nothing of a step.

    Attributes:
        fetches: A nest of operations, tensors, variables and names.
        feed_dict: What is fed.
        model: The graph.
        names: The variables that are used.
        assigned: Those of them that may be assigned.
    """

    fetches: Any
    feed_dict: Mapping[Any, Any]
    model: ModelGraph
    names: Sequence[str]
    assigned: Sequence[str]

    def run(self, values: Mapping[str, Any]) -> tuple[Any, dict[str, np.ndarray]]:
        """Runs them; returns what was fetched, and what was assigned."""
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
    """Returns what a hook runs, if it needs nothing of a step.

    Values that are only read need no session: see `of_variables`.
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
    # Only the loop counts.
    counted = (GLOBAL_STEP, EVAL_STEP)
    assigned = [name for name in run.assigned if name not in counted]
    return dataclasses.replace(run, assigned=assigned)


def of_variables(
    model: ModelGraph,
    fetches: Any,
    elements: Sequence[Any],
    feed_dict: Mapping[Any, Any] = types.MappingProxyType({}),
) -> HostRun | None:
    """What runs fetches, whose operations and tensors are these.

    `None` if they need what a step is given.
    """
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
    """The operation or tensor that is fetched; `None` for a name of ours.

    The graph refuses what is none, or of another graph.
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
    # A variable; what assigns one looks the same but for its operation.
    return element.op if hasattr(element, "handle") else element
