"""A session for the graph of an `input_fn`."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from keras_tpu_estimator.engine.inputs.releasing import release
from keras_tpu_estimator.ground.base.tensorflow_session import host_session

# A part of TensorFlow's message about an iterator.
_NOT_INITIALIZED = "iterator has not been initialized"


class InputSession:
    """A session in which a graph is initialized, and its queues are filled.

    Args:
        graph: The graph.
        initializers: More operations to run. Defaults to none.
    """

    def __init__(self, graph: Any, initializers: Sequence[Any] = ()):
        import tensorflow as tf

        v1 = tf.compat.v1
        with graph.as_default():
            first = [
                v1.global_variables_initializer(),
                v1.local_variables_initializer(),
                v1.tables_initializer(),
                *initializers,
            ]
            self._session = host_session()
            for each in first:
                self._session.run(each)
            self._coordinator = v1.train.Coordinator()
            if v1.get_collection(v1.GraphKeys.QUEUE_RUNNERS):
                v1.train.start_queue_runners(self._session, self._coordinator)

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
            if _NOT_INITIALIZED not in str(error):
                raise
            raise ValueError(
                "The iterator whose tensors `input_fn` returns must be "
                "initialized. Received one that is not: the first batch is "
                "read before hooks have a session. Return the dataset, made "
                "of arrays in place of placeholders, and leave out the hook; "
                "or add `iterator.initializer` to the collection "
                "tf.GraphKeys.TABLE_INITIALIZERS."
            ) from error

    def close(self) -> None:
        """Closes the session, and stops the threads that fill its queues."""
        self._coordinator.request_stop()
        # Closing does not wait, as for the iterators of `engine/inputs/datasets.py`.
        release(self._session.close)
