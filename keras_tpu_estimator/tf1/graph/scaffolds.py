"""A `tf.train.Scaffold`, converted to this package's `Scaffold`.

Its `init_op` and `init_fn` run in a session with the variables of the graph. Its
`saver` defines the names under which evaluation and prediction read variables.
"""

import contextlib
import dataclasses
import types
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_tpu_estimator.api.model_fn.scaffold import InitSession, Scaffold
from keras_tpu_estimator.base.common.logs import warn_once
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.tensorflow_session import host_session
from keras_tpu_estimator.files.directory.retention import Retention
from keras_tpu_estimator.tf1.graph import internals, saved_objects
from keras_tpu_estimator.tf1.graph.sessions import LocalInit, load_values
from keras_tpu_estimator.tf1.host.tensorflow_hook import retention_of_saver
from keras_tpu_estimator.tf1.spec import EstimatorSpec, Spec

# By field, the collection in which TensorFlow looks for it and stores defaults.
_COLLECTIONS = {
    "init_op": "init_op",
    "ready_op": "ready_op",
    "ready_for_local_init_op": "ready_for_local_init_op",
    "local_init_op": "local_init_op",
    "summary_op": "summary_op",
    "saver": "savers",
}
_WITHOUT_EFFECT = ("ready_op", "ready_for_local_init_op")


@dataclasses.dataclass(frozen=True, eq=False)
class GraphScaffold:
    """The fields of a `tf.train.Scaffold` that a script has set.

    A field is `None` if TensorFlow would make a default.

    Attributes:
        init_op: Assigns initial values if there is no checkpoint.
        init_fn: A function of a session that runs after `init_op`.
        local_init: Assigns values to local variables in each call.
        saver: The names of variables in checkpoints.
    """

    init_op: Any = None
    init_feed_dict: Mapping[Any, Any] | None = None
    init_fn: Any = None
    local_init: LocalInit | None = None
    summary_op: Any = None
    saver: Any = None


def scaffold_of(spec: Spec, use_tpu: bool) -> GraphScaffold:
    """Reads the `tf.train.Scaffold` of a spec. The graph must be the default graph."""
    import tensorflow as tf

    scaffold = _scaffold_in(spec)
    if scaffold is None and use_tpu and not isinstance(spec, EstimatorSpec):
        if spec.scaffold_fn is not None:
            raise ValueError(
                "`scaffold_fn` must return a tf.train.Scaffold. Received: "
                "None. Return tf.compat.v1.train.Scaffold()."
            )
    kind = tf.compat.v1.train.Scaffold
    if scaffold is None:
        scaffold = kind()
    collected = {
        name: tf.compat.v1.get_collection(key) for name, key in _COLLECTIONS.items()
    }
    finalize = scaffold.finalize
    if getattr(finalize, "__func__", finalize) is not kind.finalize:
        with _open(tf.compat.v1.get_default_graph()):
            finalize()
    fields = {
        name: _value_unless_default(name, getattr(scaffold, name), collected[name])
        for name in _COLLECTIONS
    }
    _warn(fields)
    local = fields["local_init_op"]
    if local is not None:
        local = LocalInit(local, scaffold.local_init_feed_dict)
    return GraphScaffold(
        fields["init_op"],
        scaffold.init_feed_dict,
        scaffold.init_fn,
        local,
        fields["summary_op"],
        fields["saver"],
    )


def _scaffold_in(spec: Spec) -> Any:
    if isinstance(spec, EstimatorSpec):
        return spec.scaffold
    return None if spec.scaffold_fn is None else spec.scaffold_fn()


@contextlib.contextmanager
def _open(graph: Any) -> Iterator[None]:
    """Keeps a graph from being finalized, because hooks still add to it."""
    graph.finalize = lambda: None
    try:
        yield
    finally:
        del graph.finalize


def _value_unless_default(name: str, value: Any, collected: Sequence[Any]) -> Any:
    """Returns the value of a field, unless `finalize` made it by default."""
    import tensorflow as tf

    if len(collected) == 1 and value is None:
        return collected[0]
    collection = tf.compat.v1.get_collection(_COLLECTIONS[name])
    is_new = any(value is element for element in collection[len(collected) :])
    return None if is_new else value


def _warn(fields: Mapping[str, Any]) -> None:
    """Warns about fields that are set but have no effect."""
    for name in _WITHOUT_EFFECT:
        if fields[name] is not None:
            warn_once(
                f"`{name}` of a tf.train.Scaffold has no effect: variables "
                "have their values before the first step. Leave it out."
            )
    saver = fields["saver"]
    is_known = internals.is_saver(saver) or saved_objects.is_checkpoint(saver)
    if saver is not None and not is_known:
        warn_once(
            "The `saver` of a tf.train.Scaffold has no effect, because it is "
            f"a {type(saver).__name__}: checkpoints have the variables of the "
            "graph under their names. Leave it out, or pass a tf.train.Saver."
        )


def as_ours(
    scaffold: GraphScaffold,
    mode: str,
    graph: Any,
    variables: Mapping[str, Any],
    local: Mapping[str, Any] = types.MappingProxyType({}),
) -> Scaffold:
    """Returns the scaffold of a step.

    A `saver` that renames variables raises a NotImplementedError in TRAIN.
    """
    is_init = scaffold.init_op is not None or scaffold.init_fn is not None
    init_fn = _Init(scaffold, graph, variables, local) if is_init else None
    restored = _renamed(scaffold.saver, variables)
    if restored and mode == ModeKeys.TRAIN:
        raise NotImplementedError(
            "The `saver` of a Scaffold must save variables under their own "
            "names in training, as checkpoints do. Received others: "
            f"{restored}. Pass it in evaluation and prediction, which then "
            "read variables under these names."
        )
    return Scaffold(init_fn=init_fn, variables_to_restore=restored or None)


def retention_of(scaffold: GraphScaffold) -> Retention | None:
    """Returns the checkpoints that the scaffold's saver keeps, or `None`.

    As in the original, they replace those of `RunConfig`.
    """
    return retention_of_saver(scaffold.saver)


def objects_of(
    scaffold: GraphScaffold, graph: Any, variables: Container[str]
) -> bytes | None:
    """Returns the object graph for checkpoints if the saver is a `Checkpoint`."""
    if not saved_objects.is_checkpoint(scaffold.saver):
        return None
    with graph.as_default():
        return saved_objects.serialized_objects(scaffold.saver, variables)


def _renamed(saver: Any, variables: Mapping[str, Any]) -> dict[str, str]:
    """Returns variable names by the names in a saver, where they differ."""
    if saver is None or not internals.is_saver(saver):
        return {}
    return {
        saved: name
        for saved, name in internals.saved_names(saver).items()
        if name in variables and saved != name
    }


class _Init:
    """Runs a scaffold in a session with the variables of its graph."""

    def __init__(
        self,
        scaffold: GraphScaffold,
        graph: Any,
        variables: Mapping[str, Any],
        local: Mapping[str, Any],
    ):
        self._scaffold = scaffold
        self._graph = graph
        self._variables = variables
        self._local = local

    def __call__(self, scaffold: Scaffold, session: InitSession) -> None:
        """Runs the scaffold, and assigns the changed values as initial values."""
        del scaffold
        graph_scaffold = self._scaffold
        before: dict[str, np.ndarray] = session.run(
            {name: name for name in self._variables}
        )
        with host_session(self._graph) as host:
            load_values(host, self._variables, before)
            if graph_scaffold.init_op is not None:
                host.run(graph_scaffold.init_op, graph_scaffold.init_feed_dict)
            if graph_scaffold.init_fn is not None:
                graph_scaffold.init_fn(host)
            after = host.run(dict(self._variables))
        session.assign(
            {
                name: value
                for name, value in after.items()
                if not np.array_equal(value, before[name])
            }
        )
        if graph_scaffold.local_init is not None and self._local:
            # The operation runs again, because it may read initialized variables.
            local_values = graph_scaffold.local_init.values(
                self._variables, self._local, after, self._local
            )
            session.assign(local_values)
