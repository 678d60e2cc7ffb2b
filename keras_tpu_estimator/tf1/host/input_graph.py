"""The `input_fn` of a TF1 script, called in a separate graph.

A dataset of the graph is converted to one that is read eagerly. Tensors of the graph
are evaluated in a session, once for each batch.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from keras_tpu_estimator.base.common.tensorflow_session import host_session
from keras_tpu_estimator.engine.inputs.batch_source import Arrays, BatchSource
from keras_tpu_estimator.engine.inputs.datasets import release
from keras_tpu_estimator.engine.inputs.deployment import InputPlan
from keras_tpu_estimator.engine.inputs.request import source_of
from keras_tpu_estimator.engine.inputs.stacking import StackSize
from keras_tpu_estimator.tf1.graph import internals
from keras_tpu_estimator.tf1.graph.definitions import reachable
from keras_tpu_estimator.tf1.graph.sparse_features import dataset_in_parts, in_parts
from keras_tpu_estimator.tf1.host.iterator_hooks import (
    UNINITIALIZED,
    initialize_iterators,
    is_uninitialized,
)
from keras_tpu_estimator.tf1.host.tensorflow_hook import TensorFlowHook


class InputSession:
    """A session in which a graph is initialized, and its queues are filled."""

    def __init__(self, graph: Any, initializers: Sequence[Any] = ()):
        import tensorflow as tf

        v1 = tf.compat.v1
        self._error: Exception | None = None
        with graph.as_default():
            self._initializers = [
                v1.global_variables_initializer(),
                v1.local_variables_initializer(),
                v1.tables_initializer(),
                *initializers,
            ]
            self._session = host_session()
            for initializer in self._initializers:
                self._session.run(initializer)
            self._coordinator = v1.train.Coordinator()
            if v1.get_collection(v1.GraphKeys.QUEUE_RUNNERS):
                v1.train.start_queue_runners(self._session, self._coordinator)

    def initialize(self, tensors: Any, hooks: Iterable[TensorFlowHook]) -> None:
        """Makes hooks initialize the iterators that tensors depend on."""
        leaves = jax.tree.leaves(tensors)
        self._error = initialize_iterators(
            self._session, leaves, self._initializers, hooks
        )

    def run(self, tensors: Any) -> Any:
        """Returns the values of a pytree of tensors."""
        leaves, structure = jax.tree.flatten(tensors)
        return jax.tree.unflatten(structure, self._session.run(leaves))

    def batches(self, tensors: Any) -> Iterator[Any]:
        """Yields the values of a pytree of tensors until they are out of range."""
        import tensorflow as tf

        leaves, structure = jax.tree.flatten(tensors)
        run = self._session.make_callable(leaves)
        try:
            while True:
                yield jax.tree.unflatten(structure, run())
        except tf.errors.OutOfRangeError:
            return
        except tf.errors.FailedPreconditionError as error:
            if not is_uninitialized(error):
                raise
            raise ValueError(UNINITIALIZED) from (self._error or error)

    def close(self) -> None:
        """Closes the session, and stops the threads that fill its queues."""
        self._coordinator.request_stop()
        # Closing does not wait, as for the iterators of `engine/inputs/datasets.py`.
        release(self._session.close)


# TensorFlow's messages about tensors that have no values yet.
_WANTS_EAGER = re.compile("eager|SymbolicTensor|numpy", re.IGNORECASE)
# The states of random ops and Python functions are not part of a dataset's state.
_IGNORE_STATE = 1


def source_in_graph(
    call: Callable[[], Any],
    number: int,
    seed: int | None,
    hooks: Sequence[TensorFlowHook] = (),
) -> BatchSource:
    """Calls an `input_fn` in a graph, and makes a source of its result.

    An `input_fn` that needs eager tensors is called again outside of a graph, unless
    the script has disabled eager execution. `number` distinguishes the input functions
    that feed one step. `hooks` may initialize the iterators whose tensors it returns.
    """
    import tensorflow as tf

    graph, is_eager = tf.Graph(), tf.executing_eagerly()
    with graph.as_default():
        if seed is not None:
            # Several input functions shuffle in different orders.
            tf.compat.v1.set_random_seed((seed + number) % 2**31)
        try:
            value = call()
        except (RuntimeError, AttributeError, TypeError) as error:
            if not is_eager or not _WANTS_EAGER.search(str(error)):
                raise
            with internals.eagerly():
                return _Eager(source_of(_in_parts(call())))
        if isinstance(value, tf.data.Dataset):
            return _of_dataset(graph, value)
        if not any(map(tf.is_tensor, jax.tree.leaves(value, _is_leaf))):
            return source_of(value)
        return _of_tensors(graph, value, hooks)


def _of_dataset(graph: Any, dataset: Any) -> BatchSource:
    """Returns the source of a dataset, in the graph or outside of it."""
    import tensorflow as tf

    variant = tf.data.experimental.to_variant(dataset)
    if getattr(variant, "graph", None) is not graph:
        with internals.eagerly():
            return _Eager(source_of(_in_parts(dataset)))
    dataset = _in_parts(dataset)
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
            source_of(dataset), graph, iterator.get_next(), [iterator.initializer]
        )
    session.close()
    with internals.eagerly():
        variant = tf.raw_ops.DatasetFromGraph(graph_def=serialized)
        copy = tf.data.experimental.from_variant(variant, dataset.element_spec)
        # The source keeps the graph, which owns the dataset's Python functions.
        return _Eager(source_of(copy), graph)


def _in_parts(value: Any) -> Any:
    """A dataset with sparse tensors in parts, or another value as it is."""
    import tensorflow as tf

    is_dataset = isinstance(value, tf.data.Dataset)
    return dataset_in_parts(value) if is_dataset else value


def _of_tensors(graph: Any, value: Any, hooks: Sequence[TensorFlowHook]) -> BatchSource:
    """Returns the source of a pytree of graph tensors."""
    import tensorflow as tf

    value = jax.tree.map(in_parts, value, is_leaf=tf.is_tensor)
    for path, leaf in jax.tree_util.tree_leaves_with_path(value):
        if isinstance(leaf, tf.RaggedTensor):
            raise TypeError(
                f"The tensor{jax.tree_util.keystr(path)} that input_fn returns "
                f"must be dense. Received: {leaf}. Make it dense there, for "
                "instance with tf.sparse.to_dense or .to_tensor()."
            )
    tensors = jax.tree.map(tf.convert_to_tensor, value)
    ops = reachable(graph, jax.tree.leaves(tensors))
    if any(op.op_def.is_stateful for op in ops):
        return _Tensors(Arrays(value), graph, tensors, hooks=hooks)
    session = InputSession(graph)
    try:
        return Arrays(session.run(tensors))
    finally:
        session.close()


def _is_leaf(value: Any) -> bool:
    """Returns whether a value, such as a generator, is not a container."""
    return not isinstance(value, Mapping | tuple | list)


class _Tensors(BatchSource):
    """Tensors of a graph, evaluated until they are out of range.

    They are allowed wherever the source `like` is. The `initializers` run before the
    first batch; `hooks` may initialize other iterators.
    """

    def __init__(
        self,
        like: BatchSource,
        graph: Any,
        tensors: Any,
        initializers: Sequence[Any] = (),
        hooks: Sequence[TensorFlowHook] = (),
    ):
        super().__init__(tensors)
        self._like, self._graph = like, graph
        self._initializers, self._hooks = initializers, hooks

    def check(self, plan: InputPlan) -> None:
        """Checks that this way of calling `input_fn` allows such tensors."""
        self._like.check(plan)

    def items(self, state: Any = None) -> Iterator[Any]:
        """Yields the batches from the first one."""
        if state is not None:
            raise ValueError("`state` must be None for tensors of a graph.")
        session = InputSession(self._graph, self._initializers)
        try:
            session.initialize(self._value, self._hooks)
            yield from session.batches(self._value)
        finally:
            session.close()


class _Eager(BatchSource):
    """A source that is read eagerly, even if the script has disabled that."""

    def __init__(self, source: BatchSource, value: Any = None):
        super().__init__(value)
        self._source = source
        self.is_single, self.stacked = source.is_single, source.stacked
        self.may_stay = source.may_stay

    def check(self, plan: InputPlan) -> None:
        """Checks the plan as the source does."""
        self._source.check(plan)

    def items(self, state: Any = None) -> Iterator[Any]:
        """Returns an iterator over the items, from a state on."""
        with internals.eagerly():
            return _EagerIterator(self._source.items(state))

    def state_of(self, items: Any) -> Any:
        """Returns the state of an iterator over the items."""
        with internals.eagerly():
            return self._source.state_of(items.iterator)

    def stacked_for(
        self, steps: int, batch_size: int | None, stack_size: StackSize
    ) -> int:
        """Returns the number of batches to read at once."""
        with internals.eagerly():
            return self._source.stacked_for(steps, batch_size, stack_size)

    def in_stacks(self, batches: int) -> "_Eager":
        """Returns the same source with this number of batches per item."""
        with internals.eagerly():
            return _Eager(self._source.in_stacks(batches), self._value)

    def release(self, items: list[Iterator[Any]]) -> None:  # type: ignore[override]
        """Releases the iterators in a list."""
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
