"""What a `local_init_op` gives the variables of one call."""

from collections.abc import Collection
from collections.abc import Mapping
from typing import Any

from keras_tpu_estimator.ground.base.tensorflow_session import host_session
from keras_tpu_estimator.tf1.definitions import definition_of
from keras_tpu_estimator.tf1.definitions import reachable
from keras_tpu_estimator.tf1.effects import effects_of
from keras_tpu_estimator.tf1.functions import Body
from keras_tpu_estimator.tf1.graph import ModelGraph
from keras_tpu_estimator.tf1.refusals import line_of
from keras_tpu_estimator.tf1.sessions import load_values


def local_values(
    model: ModelGraph, wanted: Collection[str], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the values that a scaffold's `local_init_op` leaves.

    Args:
        model: The graph; it has a `local_init_op`.
        wanted: The names of variables of one call.
        values: Those of the other variables, which it may read.

    Raises:
        NotImplementedError: It assigns variables of the model.
    """
    init_op = model.scaffold.local_init_op
    names = _variables_of(model, init_op)
    read = {n: values[n] for n in names if n in model.variables}
    with host_session(model.graph) as session:
        load_values(session, model.variables, read)
        session.run([v.initializer for v in model.local.values()])
        session.run(init_op, model.scaffold.local_init_feed_dict)
        made: dict[str, Any] = session.run({n: model.local[n] for n in wanted})
    return made


def _variables_of(model: ModelGraph, init_op: Any) -> list[str]:
    """The variables that a `local_init_op` reads or assigns."""
    known = definition_of(model.graph)
    ops = reachable(model.graph, [init_op])
    names = [op.name for op in ops if op.type == "VarHandleOp"]
    body = Body([known.nodes[op.name] for op in ops], [], names)
    assigned = effects_of(body, known.library).last_writes
    others = sorted(assigned.keys() & model.variables.keys())
    if others:
        op = getattr(init_op, "op", init_op)
        raise NotImplementedError(
            "The `local_init_op` of a Scaffold must assign only local "
            "variables, because the others have the values of the checkpoint. "
            f"Received: {op.name}, made at {line_of(op)}, which assigns "
            f"{others}. Move these assignments to `init_op` or `init_fn`."
        )
    return names
