"""Sessions for TensorFlow hooks: graph tensors as values of a run."""

import contextlib
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from keras_tpu_estimator.api.hooks.session import (
    InputEndsError,
    Session,
    refuse_feed,
    warn_of_options,
)


class Request(NamedTuple):
    """The names to fetch for a hook of TensorFlow, and a function that returns its
    results from values by name and from the graph that made them, or `None` before a
    run.
    """

    names: Collection[str]
    results: Callable[[Mapping[str, Any], Any], Any]


class BatchRun(NamedTuple):
    """A hook's operations that run on a separate batch, by name; the variables to
    read afterwards; and a function that returns the results from values by name.
    """

    operations: tuple[str, ...]
    variables: Collection[str]
    results: Callable[[Mapping[str, Any]], Any]


class HostRun(Protocol):
    """A hook's operations that run only on the host."""

    @property
    def names(self) -> Collection[str]:
        """The variables that the operations use."""

    def run(self, values: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Runs the operations, and returns the fetched and the assigned values."""


class HookedGraph(Protocol):
    """The graph of a program, with the operations of its hooks, and the names that each
    run fetches without hooks.
    """

    graph: Any
    fetched: Any

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Makes the graph the default one, as while it was built."""

    def enter_new(self, store: Any) -> bool:
        """Enters variables that hooks created into a program's `VariableStore`, and
        returns whether there are any.
        """

    def host_run(
        self, fetches: Any, feed_dict: Mapping[Any, Any] | None
    ) -> HostRun | None:
        """Returns operations that can run on the host: they assign variables, or are
        fed, and need no tensor of a step.
        """

    def batch_run(self, fetches: Any, requested: Collection[str]) -> BatchRun | None:
        """Returns operations that assign variables and need the input of a step, and
        that were not requested before the run.
        """

    def trains(self, values: Any) -> bool:
        """Returns whether a pytree contains an operation that `batch_run` accepts."""

    def batch_step(self, operations: Sequence[str], store: Any) -> Any:
        """Returns the `Step` of the operations of a `BatchRun`, whose variables a
        program's `VariableStore` contains.
        """

    def assigns(self, fetches: Any) -> bool:
        """Returns whether `host_run` accepts fetches, which assign only variables that
        the step does not use.
        """

    def request(
        self, fetches: Any, requested: Collection[str] | None = None
    ) -> Request:
        """Returns the names to fetch for some tensors.

        `requested` are the names of earlier requests, or `None` before the run.
        """


class InputGraphSession(Protocol):
    """The session of an `input_fn`'s graph, and the names of the iterators that a hook
    has initialized in it.
    """

    graph: Any
    initialized: set[str]


class GraphSession:
    """A `tf.compat.v1.Session` for TensorFlow hooks, of a program that must have a
    graph; `requested` are the names of the hook's requests so far. An early call of
    the hook has already run the operations of `input_graph`.
    """

    input_graph: Any = None

    def __init__(self, session: Session, requested: Collection[str] = ()):
        if session.graph is None:
            raise ValueError(
                "Hooks of TensorFlow need a model_fn that builds a "
                "TensorFlow graph, marked by kte.tf1.model_fn. Received one "
                "with another model_fn: derive the hook from "
                "keras_tpu_estimator.hooks.SessionRunHook."
            )
        self._session = session
        self._hooked: HookedGraph = session.graph
        self._requested = requested

    @property
    def graph(self) -> Any:
        """The TensorFlow graph."""
        return self._hooked.graph

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: Any = None,
        run_metadata: Any = None,
    ) -> Any:
        """Returns the current values of a pytree of tensors, variables and names.

        Args:
            fetches: Variables, values computed only from variables, and the
                fetches of `before_run`. Or operations that need no tensor of a
                step, such as those that assign or save variables; the next step
                uses the assigned values. Or, in `train`, operations that assign
                variables from tensors of a step, such as a train op. They run as
                a step of their own, on the next batch of the input.
            feed_dict: Values for the placeholders of such operations. Otherwise
                it must be `None`, because a device loop cannot be fed.
            options: Accepted; has no effect except a logged warning.
            run_metadata: Accepted, as `options`.

        Raises:
            ValueError: They cannot be fetched, or a value is fed.
            tf.errors.OutOfRangeError: The input has no batch for them.
        """
        warn_of_options("session.run", options)
        warn_of_options("session.run", run_metadata, "run_metadata")
        if self._has_run(fetches):
            return None
        host_run = self._hooked.host_run(fetches, feed_dict)
        if host_run is not None:
            fetched, assigned = host_run.run(self.values(host_run.names))
            self._session.live.assign(assigned)
            return fetched
        refuse_feed("feed_dict", feed_dict or None)
        batch_run = self._hooked.batch_run(fetches, self._requested)
        if batch_run is not None:
            return self._on_batch(batch_run)
        request = self._hooked.request(fetches, self._requested)
        return self.results(request)

    def _on_batch(self, run: BatchRun) -> Any:
        """Returns the results of operations, which run on the next batch."""
        from tensorflow.errors import OutOfRangeError

        try:
            values = self._session.run_on_batch(run.operations)
        except InputEndsError as error:
            raise OutOfRangeError(None, None, "End of sequence") from error
        return run.results(values | self.values(run.variables))

    def _has_run(self, fetches: Any) -> bool:
        """Returns whether an early call has already run an operation."""
        is_of_input = getattr(fetches, "graph", None) is self.input_graph
        return self.input_graph is not None and is_of_input

    def results(self, request: Request) -> Any:
        """Returns the results of a request after a run."""
        values = self.values(request.names)
        return request.results(values, getattr(self._session.live, "graph", None))

    def values(self, names: Collection[str]) -> dict[str, Any]:
        """Returns the values of names, as `Session.run` does."""
        values: dict[str, Any] = self._session.run({n: n for n in names})
        return values


def graph_session(session: Session, requested: Collection[str] = ()) -> GraphSession:
    """Returns a session that TensorFlow's own functions also accept."""
    tensorflow_session: GraphSession = _known_to_tensorflow()(session, requested)
    return tensorflow_session


@functools.cache
def _known_to_tensorflow() -> type[GraphSession]:
    """Returns the class that a `tf.train.Saver` accepts."""
    import tensorflow as tf

    # The last base class before `object`, which has no public name.
    interface = tf.compat.v1.Session.__mro__[-2]
    return type("TensorFlowSession", (GraphSession, interface), {})
