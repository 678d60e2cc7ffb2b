"""Functions that the host calls for each step, in a TensorFlow session."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_tpu_estimator.api.hooks.session import Session
from keras_tpu_estimator.api.hooks.session_run_hook import LoopHook
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.files.summary import recording
from keras_tpu_estimator.tf1.host.graph_cut import Cut
from keras_tpu_estimator.tf1.host.host_graph import (
    CalledGraph,
    GraphFunction,
    HostGraph,
    dtypes_of,
    shapes_of,
)


class HostCall(GraphFunction):
    """A `host_call` that builds a graph, as a function of NumPy arrays.

    Each call runs the operations that the user's function returned. The user's function
    itself is called once for each shape of its tensors in each `train`, `evaluate` or
    `predict`. Scripts read the global step before the increment, so `steps_counted` is
    the number of steps that a run has already counted when it is called.
    """

    def __init__(self, function: Callable[..., Any], dtypes: PyTree):
        super().__init__(function, dtypes)
        self.steps_counted = 0
        self._sessions: dict[Any, _HostSession] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Runs the operations for one step."""
        tensors = self.arrays(args, kwargs)
        shapes = shapes_of(tensors)
        if shapes not in self._sessions:
            self._sessions[shapes] = _HostSession(self._function, tensors)
        step = recording.get_step() - self.steps_counted
        self._sessions[shapes].run(jax.tree.leaves(tensors), step)

    def close(self) -> None:
        """Closes the sessions, so that the event files are complete."""
        while self._sessions:
            _, session = self._sessions.popitem()
            session.close()


class StepWriter:
    """The part of a graph that writes files, as a function of NumPy arrays.

    `runs` contains the names of the operations to run for each step.
    """

    def __init__(self, part: Cut, runs: Sequence[str]):
        self._part = part
        self._runs = runs
        self._dtypes = dtypes_of(part.boundary)
        self._graph: HostGraph | None = None

    def __call__(self, *arrays: Any) -> None:
        """Writes the output of one step.

        The arrays are the values of the boundary and then of the variables, one row per
        device.
        """
        if self._graph is None:
            self._open()
        values = [_of_cores(np.asarray(array)) for array in arrays]
        count = len(self._dtypes)
        for assign, value in zip(self._assign, values[count:], strict=True):
            assign(value)
        pairs = zip(values[:count], self._dtypes, strict=True)
        self._run(*(v.astype(dtype, copy=False) for v, dtype in pairs))

    def close(self) -> None:
        """Closes the session, so that the event files are complete."""
        if self._graph is not None:
            self._graph.close()
            self._graph = None

    def _open(self) -> None:
        graph = self._part.graph()
        operation = graph.graph.get_operation_by_name
        self._run = graph.callable([operation(name) for name in self._runs])
        self._assign = [graph.assigning(n) for n in self._part.variables]
        self._graph = graph


class CloseHostCall(LoopHook):
    """A hook that closes a function's sessions when the call of the estimator ends."""

    def __init__(self, host_call: HostCall | StepWriter):
        self._host_call = host_call

    def close(self, session: Session) -> None:
        """Closes the sessions before the `end` of any hook."""
        del session
        self._host_call.close()


class _HostSession:
    """The graph of a `host_call` for tensors of some shapes, with its session."""

    def __init__(self, function: Callable[..., Any], tensors: PyTree):
        self._graph = CalledGraph(function, tensors, _operations)
        self._run = self._graph.callable(self._graph.operations)

    def run(self, leaves: list[Any], step: int) -> None:
        """Runs the operations with these tensors."""
        self._graph.set_step(step)
        self._run(*leaves)

    def close(self) -> None:
        """Closes the session."""
        self._graph.close()


def _operations(graph: Any, returned: PyTree) -> list[Any]:
    """Returns the result of a `host_call` as operations."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with graph.as_default():
        summaries = v1.get_collection(v1.GraphKeys.SUMMARIES)
    if summaries:
        raise ValueError(
            "host_call must make its summaries with tf.compat.v2.summary or "
            "tf.contrib.summary, inside `writer.as_default()`, and return "
            "tf.compat.v1.summary.all_v2_summary_ops(). Received summaries of "
            f"tf.summary: {[summary.op.name for summary in summaries[:5]]}."
        )
    operations = []
    for element in tf.nest.flatten(returned):
        if element is None:
            continue
        if not isinstance(element, tf.Operation) and not tf.is_tensor(element):
            raise TypeError(
                "host_call must return operations or tensors of the graph "
                f"that it builds. Received: {element!r} of type "
                f"{type(element).__name__}"
            )
        operations.append(getattr(element, "op", element))
    return operations


def _of_cores(rows: np.ndarray) -> np.ndarray:
    """Returns the mean of scalars, or else the value of the first device."""
    if rows.ndim == 1 and jnp.issubdtype(rows.dtype, jnp.inexact):
        return np.asarray(rows.mean(), rows.dtype)
    return np.asarray(rows[0])
