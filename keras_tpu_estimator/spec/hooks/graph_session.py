"""What hooks of TensorFlow get of a run: tensors of the graph, as values."""

import contextlib
import functools
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple
from typing import Protocol

from keras_tpu_estimator.spec.hooks.fetches import refuse_feed
from keras_tpu_estimator.spec.hooks.fetches import warn_of_options
from keras_tpu_estimator.spec.hooks.session import Session


class Request(NamedTuple):
    """What is fetched for what a hook wants.

    Attributes:
        results: Makes what the hook gets, of the values by name.
    """

    names: Collection[str]
    results: Callable[[Mapping[str, Any]], Any]


class HostRun(Protocol):
    """What a hook runs on the host alone."""

    @property
    def names(self) -> Collection[str]:
        """The variables that are used."""

    def run(self, values: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Runs them.

        Args:
            values: The values of the variables by name.

        Returns:
            What was fetched, and what was assigned.
        """


class HookedGraph(Protocol):
    """A graph that a program was made of, as its hooks may use it.

    Attributes:
        graph: The graph of TensorFlow.
        fetched: What each run fetches without hooks.
    """

    graph: Any
    fetched: Any

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Makes the graph the default one, as while it was built."""

    def enter_new(self, store: Any) -> bool:
        """Enters the variables that hooks have made into a program's store.

        Args:
            store: The `VariableStore` of the program.

        Returns:
            Whether there are any.
        """

    def host_run(
        self, fetches: Any, feed_dict: Mapping[Any, Any] | None
    ) -> HostRun | None:
        """Returns what runs only on the host.

        It assigns variables, or is fed, and needs nothing of a step.

        Args:
            fetches: A nest of operations, tensors, variables and names.
        """

    def request(
        self, fetches: Any, asked: Collection[str] | None = None
    ) -> Request:
        """What has to be fetched for some tensors.

        Args:
            fetches: A nest of tensors, variables and names.
            asked: The names that were asked for before the run; `None` if it
                is yet to come.

        Raises:
            ValueError: They cannot be fetched.
        """


class GraphSession:
    """A session as hooks of TensorFlow know it.

    Args:
        asked: The names that the hook has asked for so far.

    Raises:
        ValueError: The program was made of no graph.
    """

    def __init__(self, session: Session, asked: Collection[str] = ()):
        if session.graph is None:
            raise ValueError(
                "Hooks of TensorFlow should accompany a model_fn that builds "
                "a TensorFlow graph, marked by kte.tf1.model_fn. Received one "
                "with another model_fn: derive the hook from "
                "keras_tpu_estimator.hooks.SessionRunHook."
            )
        self._session = session
        self._hooked: HookedGraph = session.graph
        self._asked = asked

    @property
    def graph(self) -> Any:
        """The graph of TensorFlow."""
        return self._hooked.graph

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: Any = None,
        run_metadata: Any = None,
    ) -> Any:
        """The current values of a nest of tensors, variables and names.

        Args:
            fetches: Variables, what comes of variables alone, and what
                `before_run` has asked for. Or operations that need nothing of
                a step, such as those that assign variables or save them: the
                next step begins with what they have assigned.
            feed_dict: What is fed to such operations. Otherwise it must be
                `None`: nothing is fed into a device loop.
            options: Accepted; has no effect, of which a warning is logged.
            run_metadata: Accepted in the same way.

        Raises:
            ValueError: They cannot be fetched, or something is fed.
        """
        warn_of_options("session.run", options)
        warn_of_options("session.run", run_metadata, "run_metadata")
        host_run = self._hooked.host_run(fetches, feed_dict)
        if host_run is not None:
            fetched, assigned = host_run.run(self.values(host_run.names))
            self._session.live.assign(assigned)
            return fetched
        refuse_feed("feed_dict", feed_dict or None)
        request = self._hooked.request(fetches, self._asked)
        return request.results(self.values(request.names))

    def values(self, names: Collection[str]) -> dict[str, Any]:
        """The values of names, as `Session.run` has them."""
        values: dict[str, Any] = self._session.run({n: n for n in names})
        return values


def graph_session(
    session: Session, asked: Collection[str] = ()
) -> GraphSession:
    """Makes a session that also is one to TensorFlow's own functions.

    Args:
        session: What hooks of this package use.
        asked: As in `GraphSession`.

    Raises:
        ValueError: As there.
    """
    made: GraphSession = _known_to_tensorflow()(session, asked)
    return made


@functools.cache
def _known_to_tensorflow() -> type[GraphSession]:
    """The class that a `tf.train.Saver` accepts."""
    import tensorflow as tf

    # The last base but `object`, which has no public name.
    interface = tf.compat.v1.Session.__mro__[-2]
    return type("TensorFlowSession", (GraphSession, interface), {})
