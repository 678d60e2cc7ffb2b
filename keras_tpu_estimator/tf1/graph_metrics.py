"""Metrics in the graph of a `model_fn`: `eval_metric_ops`.

Local variables hold their counts. The graph is cut there: the devices compute the
inputs, and the rest runs in a session on the host.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.tf1.graph_cut import Cut, cut
from keras_tpu_estimator.tf1.host_graph import dtypes_of
from keras_tpu_estimator.tf1.metric_session import Metrics, MetricSession


class GraphMetrics(Metrics):
    """The metrics of the graphs of one mode, as a function of NumPy arrays."""

    def __init__(self) -> None:
        super().__init__(lambda: None, [])
        self._graphs: list[_Cut] = []

    def enter(self, graph: Any, pairs: Mapping[str, tuple[Any, Any]]) -> Nest:
        """Cuts a graph, and returns the tensors that the function needs.

        Each metric is a pair of its value and the operation that counts a batch.
        """
        import tensorflow as tf

        v1 = tf.compat.v1
        with graph.as_default():
            # The position of the graph that belongs to batches of this size.
            number = tf.constant([len(self._graphs)], tf.int32)
            wanted = jax.tree.map(
                lambda t: tf.identity(t) if tf.is_tensor(t) else t, dict(pairs)
            )
            local = {v.op.name: v for v in v1.local_variables()}
        fetches = jax.tree.leaves(wanted)
        part = cut(graph, fetches, local)
        part = dataclasses.replace(part, boundary=[number, *part.boundary])
        names = jax.tree.map(lambda each: each.name, wanted)
        self._graphs.append(_Cut(part, names))
        self._dtypes = dtypes_of(part.boundary)
        return part.boundary

    def key(self, tensors: Nest) -> Any:
        """Returns the position of the graph."""
        return int(tensors[0][0])

    def session(self, tensors: Nest) -> MetricSession:
        """Returns a session for the host's part of that graph."""
        return self._graphs[self.key(tensors)].session()


@dataclasses.dataclass(frozen=True)
class _Cut:
    """The host's part of a graph, and the names of its metrics there."""

    part: Cut
    names: Mapping[str, tuple[Nest, Nest]]

    def session(self) -> MetricSession:
        graph = self.part.graph()
        element = graph.graph.as_graph_element
        return MetricSession(graph, jax.tree.map(element, dict(self.names)))
