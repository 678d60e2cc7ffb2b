"""The `input_fn` of a TF1 program, called in a graph of its own as it was.

A dataset of the graph becomes one that is read eagerly, with all that is known
of datasets. Tensors of the graph are run in a session, once for each batch.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from keras_tpu_estimator.engine.inputs.batch_source import Arrays, BatchSource
from keras_tpu_estimator.engine.inputs.datasets import dense, in_dense_tensors
from keras_tpu_estimator.engine.inputs.deployment import InputPlan
from keras_tpu_estimator.engine.inputs.sources import source_of
from keras_tpu_estimator.engine.inputs.stacking import StackSize
from keras_tpu_estimator.tf1 import internals
from keras_tpu_estimator.tf1.definitions import reachable
from keras_tpu_estimator.tf1.input_session import InputSession

# What TensorFlow says of tensors that have no values yet.
_WANTS_EAGER = re.compile("eager|SymbolicTensor|numpy", re.IGNORECASE)
# Dense features of columns have -1 for a missing id.
_MISSING = {"f": 0, "i": -1}
# The states of random ops and of Python functions are not a dataset's own.
_IGNORE_STATE = 1


def source_in_graph(
    call: Callable[[], Any], number: int, seed: int | None
) -> BatchSource:
    """Calls an `input_fn` in a graph, and makes a source of what it returned.

    One that wants tensors with values is called again, in no graph, unless the
    program has disabled that. `number` tells it from others that feed a step.
    """
    import tensorflow as tf

    graph, is_eager = tf.Graph(), tf.executing_eagerly()
    with graph.as_default():
        if seed is not None:
            # What several calls shuffle is in as many orders.
            tf.compat.v1.set_random_seed((seed + number) % 2**31)
        try:
            value = call()
        except (RuntimeError, AttributeError, TypeError) as error:
            if not is_eager or not _WANTS_EAGER.search(str(error)):
                raise
            with internals.eagerly():
                return _Eager(source_of(_dense(call())))
        if isinstance(value, tf.data.Dataset):
            return _of_dataset(graph, value)
        if not any(map(tf.is_tensor, jax.tree.leaves(value, _is_leaf))):
            return source_of(value)
        return _of_tensors(graph, value)


def _of_dataset(graph: Any, dataset: Any) -> BatchSource:
    """The source of a dataset, which may be one of the graph."""
    import tensorflow as tf

    variant = tf.data.experimental.to_variant(dataset)
    if getattr(variant, "graph", None) is not graph:
        with internals.eagerly():
            return _Eager(source_of(_dense(dataset)))
    dataset = _dense(dataset)
    variant = tf.data.experimental.to_variant(dataset)
    definition = tf.raw_ops.DatasetToGraphV2(
        input_dataset=variant,
        external_state_policy=_IGNORE_STATE,
        strip_device_assignment=True,
    )
    session = InputSession(graph)
    try:
        serialized = session.run(definition)
    except tf.errors.OpError:  # It has resources that are only in a session.
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        session.close()
        return _Tensors(
            source_of(dataset), graph, iterator.get_next(), iterator.initializer
        )
    session.close()
    with internals.eagerly():
        variant = tf.raw_ops.DatasetFromGraph(graph_def=serialized)
        copy = tf.data.experimental.from_variant(variant, dataset.element_spec)
        # With the graph go the Python functions in it.
        return _Eager(source_of(copy), graph)


def _dense(value: Any) -> Any:
    """A dataset with dense tensors, or another value as it is."""
    import tensorflow as tf

    is_dataset = isinstance(value, tf.data.Dataset)
    return in_dense_tensors(value, _MISSING) if is_dataset else value


def _of_tensors(graph: Any, value: Any) -> BatchSource:
    """The source of tensors of the graph, or of a nest of them."""
    import tensorflow as tf

    value = jax.tree.map(
        lambda each: dense(each, _MISSING), value, is_leaf=tf.is_tensor
    )
    sparse = tf.SparseTensor | tf.RaggedTensor
    for path, leaf in jax.tree_util.tree_leaves_with_path(value):
        if isinstance(leaf, sparse):
            raise TypeError(
                f"The tensor{jax.tree_util.keystr(path)} that input_fn returns "
                f"should be dense. Received: {leaf}. Make it dense there, for "
                "instance with tf.sparse.to_dense or .to_tensor()."
            )
    tensors = jax.tree.map(tf.convert_to_tensor, value)
    ops = reachable(graph, jax.tree.leaves(tensors))
    if any(op.op_def.is_stateful for op in ops):
        return _Tensors(Arrays(value), graph, tensors)
    session = InputSession(graph)
    try:
        return Arrays(session.run(tensors))
    finally:
        session.close()


def _is_leaf(value: Any) -> bool:
    """Whether a value is no nest, such as a generator."""
    return not isinstance(value, Mapping | tuple | list)


class _Tensors(BatchSource):
    """Tensors of a graph, run until they are out of range.

    They are allowed where the source is that they are `like`.
    """

    def __init__(self, like: BatchSource, graph: Any, tensors: Any, *initializers: Any):
        super().__init__(tensors)
        self._like, self._graph = like, graph
        self._initializers = initializers

    def check(self, plan: InputPlan) -> None:
        """Checks that the way of calling `input_fn` allows such tensors."""
        self._like.check(plan)

    def items(self, state: Any = None) -> Iterator[Any]:
        """The batches from the first on."""
        if state is not None:
            raise ValueError("Tensors of a graph have no state. Received one.")
        session = InputSession(self._graph, self._initializers)
        try:
            yield from session.batches(self._value)
        finally:
            session.close()


class _Eager(BatchSource):
    """A source that is read eagerly, whatever the program has disabled."""

    def __init__(self, source: BatchSource, kept: Any = None):
        super().__init__(kept)
        self._source = source
        self.is_single, self.stacked = source.is_single, source.stacked
        self.may_stay = source.may_stay

    def check(self, plan: InputPlan) -> None:
        """Checks as the source does."""
        self._source.check(plan)

    def items(self, state: Any = None) -> Iterator[Any]:
        """An iterator over what is in it, from a state on."""
        with internals.eagerly():
            return _EagerIterator(self._source.items(state))

    def state_of(self, items: Any) -> Any:
        """The state of an iterator over it."""
        with internals.eagerly():
            return self._source.state_of(items.iterator)

    def stacked_for(
        self, steps: int, batch_size: int | None, stack_size: StackSize
    ) -> int:
        """How many batches to read at once."""
        with internals.eagerly():
            return self._source.stacked_for(steps, batch_size, stack_size)

    def in_stacks(self, batches: int) -> "_Eager":
        """The same with so many batches an item."""
        with internals.eagerly():
            return _Eager(self._source.in_stacks(batches), self._value)

    def release(self, items: list[Iterator[Any]]) -> None:  # type: ignore[override]
        """Lets go of the iterators in a list."""
        self._source.release(items)


class _EagerIterator:
    """An iterator whose items are made eagerly."""

    def __init__(self, iterator: Iterator[Any]):
        self.iterator = iterator

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with internals.eagerly():
            return next(self.iterator)
