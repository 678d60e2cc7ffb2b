"""TF1 metrics in TensorFlow sessions on the host."""

import abc
import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import keras

from keras_tpu_estimator.api.model_fn.spec_checks import HostValue
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.tf1.host.graph_cut import Cut, cut
from keras_tpu_estimator.tf1.host.host_graph import (
    CalledGraph,
    GraphFunction,
    HostGraph,
    dtypes_of,
    shapes_of,
)
from keras_tpu_estimator.tf1.host.metric_values import read_after_updates
from keras_tpu_estimator.tf1.host.ordering import assign_constants_first

# The number of evaluations at a time whose variables are kept.
_MAX_EVALUATIONS = 4


class MetricSession:
    """Metrics of a graph, for batches of one size.

    `pairs` has, by name, the value of each metric, which may be a pytree, and the
    operation that counts a batch.
    """

    def __init__(self, graph: HostGraph, pairs: Mapping[str, tuple[Any, Any]]):
        self.graph = graph
        self._names = list(pairs)
        updates = [update for _, update in pairs.values()]
        values = [value for value, _ in pairs.values()]
        self._update = graph.callable(jax.tree.leaves(updates))
        self._structure = jax.tree.structure(values)
        self._read = graph.callable(jax.tree.leaves(values))

    def count(self, tensors: PyTree) -> dict[str, Any]:
        """Counts a batch, and returns the values of the metrics."""
        leaves = jax.tree.leaves(tensors)
        self._update(*leaves)
        values = jax.tree.unflatten(self._structure, self._read(*leaves))
        return dict(zip(self._names, values, strict=True))


class Metrics(GraphFunction, abc.ABC):
    """Metrics of `tf.metrics`, as a function of NumPy arrays.

    Each call counts one batch. The counts are kept in the sessions of an evaluation. A
    Keras variable with the number of the evaluation tells evaluations apart.
    """

    def __init__(self, function: Callable[..., Any], dtypes: PyTree):
        super().__init__(function, dtypes)
        self._evaluations: dict[int, _Evaluation] = {}
        self._idle: dict[Any, list[MetricSession]] = {}
        self._numbers = itertools.count(1)

    @abc.abstractmethod
    def key(self, tensors: PyTree) -> Any:
        """Returns a key that is equal for arrays that the same session accepts."""

    @abc.abstractmethod
    def session(self, tensors: PyTree) -> MetricSession:
        """Returns a new session for arrays like these."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Counts a batch, and returns pairs of values as `tf.metrics` does."""
        tensors = self.arrays(args, kwargs)
        number = keras.Variable(
            0, dtype="int32", trainable=False, name="tf1_evaluation"
        )
        if not int(number.value):
            new = next(self._numbers)
            self._evaluations[new] = _Evaluation(self.take)
            old = self._evaluations.pop(new - _MAX_EVALUATIONS, None)
            for key, session in old.sessions.items() if old else ():
                self._idle.setdefault(key, []).append(session)
            number.assign(new)
        evaluation = self._evaluations[int(number.value)]
        values = evaluation.count(self.key(tensors), tensors)
        return {name: (HostValue(v), None) for name, v in values.items()}

    def take(self, key: Any, tensors: PyTree) -> MetricSession:
        """Returns a session without counts, for arrays with this key."""
        if not self._idle.get(key):
            return self.session(tensors)
        session = self._idle[key].pop()
        session.graph.reset()
        return session


class _Evaluation:
    """The counts of one evaluation, over batches of any size."""

    def __init__(self, take: Callable[[Any, PyTree], MetricSession]):
        self._take = take
        self.sessions: dict[Any, MetricSession] = {}
        self._last: MetricSession | None = None

    def count(self, key: Any, tensors: PyTree) -> dict[str, Any]:
        """Counts a batch, and returns the values of the metrics."""
        if key not in self.sessions:
            self.sessions[key] = self._take(key, tensors)
        session = self.sessions[key]
        if self._last not in (None, session):
            session.graph.load(self._last.graph.values())
        self._last = session
        return session.count(tensors)


class MetricFn(Metrics):
    """A `metric_fn`, which builds a graph for each batch size."""

    def key(self, tensors: PyTree) -> Any:
        """Returns the shapes."""
        return shapes_of(tensors)

    def session(self, tensors: PyTree) -> MetricSession:
        """Returns a session for the graph that the function builds."""
        graph = CalledGraph(self._function, tensors, _updates, assign_constants_first)
        return MetricSession(graph, checked_pairs("metric_fn", graph.returned))


def _updates(graph: Any, metrics: Any) -> list[Any]:
    """Returns the operations that count a batch."""
    del graph
    pairs = checked_pairs("metric_fn", metrics)
    return jax.tree.leaves([update for _, update in pairs.values()])


def checked_pairs(owner: str, metrics: Any) -> dict[str, tuple[Any, Any]]:
    """Returns metrics after checking that they are pairs."""
    if not isinstance(metrics, dict):
        raise TypeError(
            f"{owner} must return a dict from names to metrics. Received: "
            f"{metrics!r} of type {type(metrics).__name__}"
        )
    for name, pair in metrics.items():
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(
                f"The metric {name!r} must be a (value, update_op) pair, as "
                "tf.compat.v1.metrics makes them. Received: "
                f"{pair!r} of type {type(pair).__name__}"
            )
    return metrics


class GraphMetrics(Metrics):
    """The metrics of the graphs of one mode, as a function of NumPy arrays."""

    def __init__(self) -> None:
        super().__init__(lambda: None, [])
        self._graphs: list[_Cut] = []

    def enter(self, graph: Any, pairs: Mapping[str, tuple[Any, Any]]) -> PyTree:
        """Cuts a graph, and returns the tensors that the function needs.

        Each metric is a pair of its value and the operation that counts a batch.
        """
        import tensorflow as tf

        v1 = tf.compat.v1
        with graph.as_default():
            # The position of the graph that belongs to batches of this size.
            number = tf.constant([len(self._graphs)], tf.int32)
            copies = jax.tree.map(
                lambda t: tf.identity(t) if tf.is_tensor(t) else t,
                read_after_updates(graph, pairs),
            )
            local = {v.op.name: v for v in v1.local_variables()}
        fetches = jax.tree.leaves(copies)
        part = cut(graph, fetches, local)
        part = dataclasses.replace(part, boundary=[number, *part.boundary])
        names = jax.tree.map(lambda tensor: tensor.name, copies)
        self._graphs.append(_Cut(part, names))
        self._dtypes = dtypes_of(part.boundary)
        return part.boundary

    def key(self, tensors: PyTree) -> Any:
        """Returns the position of the graph."""
        return int(tensors[0][0])

    def session(self, tensors: PyTree) -> MetricSession:
        """Returns a session for the host's part of that graph."""
        return self._graphs[self.key(tensors)].session()


@dataclasses.dataclass(frozen=True)
class _Cut:
    """The host's part of a graph, and the names of its metrics there."""

    part: Cut
    names: Mapping[str, tuple[PyTree, PyTree]]

    def session(self) -> MetricSession:
        updates = [update for _, update in self.names.values()]
        graph = self.part.graph(jax.tree.leaves(updates), assign_constants_first)
        element = graph.graph.as_graph_element
        return MetricSession(graph, jax.tree.map(element, dict(self.names)))
