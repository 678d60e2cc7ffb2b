"""A `tf.train.Scaffold` as ours: where values come from before the first step.

Its `init_op` and `init_fn` run in a session with the variables of the graph,
and its `saver` says under which names evaluation and prediction read variables.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.tensorflow_session import host_session
from keras_tpu_estimator.spec.model_fn.scaffold import InitSession
from keras_tpu_estimator.spec.model_fn.scaffold import Scaffold
from keras_tpu_estimator.tf1 import internals
from keras_tpu_estimator.tf1.sessions import load_values
from keras_tpu_estimator.tf1.spec import EstimatorSpec
from keras_tpu_estimator.tf1.spec import Spec


def scaffold_of(spec: Spec, use_tpu: bool) -> Any:
    """The `tf.train.Scaffold` of a spec, or `None`; called in the graph."""
    if isinstance(spec, EstimatorSpec):
        return spec.scaffold
    if spec.scaffold_fn is None:
        return None
    scaffold = spec.scaffold_fn()
    if scaffold is None and use_tpu:
        raise ValueError(
            "`scaffold_fn` should return a tf.train.Scaffold. Received: None. "
            "Return tf.compat.v1.train.Scaffold()."
        )
    return scaffold


def as_ours(
    scaffold: Any, mode: str, graph: Any, variables: Mapping[str, Any]
) -> Scaffold:
    """What a step does before it is run first.

    In TRAIN a `saver` with names of its own is refused.
    """
    if scaffold is None:
        return Scaffold()
    is_init = scaffold.init_op is not None or scaffold.init_fn is not None
    init_fn = _Init(scaffold, graph, variables) if is_init else None
    restored = _renamed(scaffold.saver, variables)
    if restored and mode == ModeKeys.TRAIN:
        raise NotImplementedError(
            "The `saver` of a Scaffold should save variables under their own "
            "names in training, as checkpoints do. Received others: "
            f"{restored}. Give it in evaluation and prediction, which then "
            "read variables under these names."
        )
    return Scaffold(init_fn=init_fn, variables_to_restore=restored or None)


def _renamed(saver: Any, variables: Mapping[str, Any]) -> dict[str, str]:
    """By the names that a saver has for variables their own, if they differ."""
    names = {} if saver is None else internals.saved_names(saver)
    return {
        saved: name
        for saved, name in names.items()
        if name in variables and saved != name
    }


class _Init:
    """What a scaffold runs, in a session with the variables of its graph."""

    def __init__(self, scaffold: Any, graph: Any, variables: Mapping[str, Any]):
        self._init_op = scaffold.init_op
        self._fed = scaffold.init_feed_dict
        self._init_fn = scaffold.init_fn
        self._graph = graph
        self._variables = variables

    def __call__(self, scaffold: Scaffold, session: InitSession) -> None:
        """Runs it; what has changed are initial values."""
        del scaffold
        before: dict[str, np.ndarray] = session.run(
            {name: name for name in self._variables}
        )
        with host_session(self._graph) as own:
            load_values(own, self._variables, before)
            if self._init_op is not None:
                own.run(self._init_op, self._fed)
            if self._init_fn is not None:
                self._init_fn(own)
            after = own.run(dict(self._variables))
        session.assign(
            {
                name: value
                for name, value in after.items()
                if not np.array_equal(value, before[name])
            }
        )
