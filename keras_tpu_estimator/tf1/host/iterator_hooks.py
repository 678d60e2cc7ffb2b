"""Iterators of an input graph that hooks initialize.

TensorFlow creates the session of the model and calls `after_create_session` before it
reads a batch. Here the first batch is read before the model is built, because the model
needs its shape. So hooks are called early, with the session of the input graph.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keras_tpu_estimator.tf1.graph.definitions import reachable
from keras_tpu_estimator.tf1.host.tensorflow_hook import TensorFlowHook

_ITERATORS = frozenset({"Iterator", "IteratorV2"})
_INITIALIZER = "MakeIterator"
# A part of TensorFlow's message about an iterator.
_NOT_INITIALIZED = "iterator has not been initialized"
# The advice for such an iterator.
UNINITIALIZED = (
    "The iterator whose tensors `input_fn` returns must be initialized before the "
    "first batch is read, which precedes the model. Received one that is not. Return "
    "the dataset or use make_one_shot_iterator; or run `iterator.initializer` in "
    "`after_create_session` of a hook in the argument `hooks`, before anything that "
    "needs the model."
)


class IteratorSession:
    """The session of an input graph, for one hook.

    `initialized` contains the names of the iterators that the hook has initialized.
    """

    def __init__(self, session: Any):
        self.graph = session.graph
        self.initialized: set[str] = set()
        self._session = session

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: Any = None,
        run_metadata: Any = None,
    ) -> Any:
        """Returns the values of a pytree of operations, tensors and names."""
        import tensorflow as tf

        values = self._session.run(fetches, feed_dict, options, run_metadata)
        leaves = tf.nest.flatten(fetches, expand_composites=True)
        elements = map(self.graph.as_graph_element, leaves)
        self.initialized |= _initialized_by(self.graph, list(elements))
        return values


def initialize_iterators(
    session: Any,
    tensors: Sequence[Any],
    initializers: Sequence[Any],
    hooks: Iterable[TensorFlowHook],
) -> Exception | None:
    """Calls hooks until they have initialized all iterators that tensors depend on.

    `initializers` are the operations that the session has already run. Returns the
    first error of a hook. It counts only if the tensors then cannot be read, because
    hooks of other purposes may need the model. These are called again when it exists.
    """
    graph = session.graph
    ops = reachable(graph, tensors)
    waiting = {op.name for op in ops if op.type in _ITERATORS}
    waiting -= _initialized_by(graph, initializers)
    error = None
    for hook in hooks:
        if not waiting:
            break
        hook_session = IteratorSession(session)
        try:
            hook.create_early(hook_session)
        except Exception as raised:
            raised.add_note(f"This happened in {type(hook.hook).__name__}.")
            error = error or raised
        waiting -= hook_session.initialized
    return error


def is_uninitialized(error: Exception) -> bool:
    """Returns whether TensorFlow raised an error because of such an iterator."""
    return _NOT_INITIALIZED in str(error)


def _initialized_by(graph: Any, fetches: Sequence[Any]) -> set[str]:
    """Returns the names of the iterators that running operations initializes."""
    ops = reachable(graph, fetches)
    return {op.inputs[1].op.name for op in ops if op.type == _INITIALIZER}
