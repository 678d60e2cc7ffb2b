"""Outputs of a `model_fn` that the host computes from those of the devices.

These are strings, and results of tables, Python or growing loops after the model.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.api.model_fn.outside_compilation import (
    HostTensor,
    is_host_tensor,
    with_host_tensors,
)
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.tf1.graph.definitions import definition_of, reachable
from keras_tpu_estimator.tf1.host.graph_cut import Cut, cut
from keras_tpu_estimator.tf1.host.host_graph import HostGraph
from keras_tpu_estimator.tf1.lift.refusals import is_for_host


@dataclasses.dataclass(frozen=True, eq=False)
class _GraphCall:
    """A part of a graph that runs after the devices; see `Call`.

    Attributes:
        part: The part.
        names: The names of the tensors that it computes.
        copies: The values of the variables that it copies, in one row for each device.
    """

    part: Cut
    names: Sequence[str]
    copies: Sequence[Any]

    def results(self, tensors: Sequence[Any]) -> list[Any]:
        """Returns the results for these arrays, which may come from several devices.

        The graph has a fixed number of rows, so smaller batches are padded.
        """
        every = [np.asarray(each) for each in tensors]
        arrays = every[: len(self.part.boundary)]
        values = every[len(self.part.boundary) :]
        if values:
            self._copy(values)
        size = self._size
        if not arrays and values:
            parts = [self._results([]) for _ in values[0]]
            return [np.concatenate(each) for each in zip(*parts, strict=True)]
        if size is None or not arrays or not arrays[0].ndim:
            return self._results(arrays)
        count = len(arrays[0])
        if count == size:
            return self._results(arrays)
        parts = []
        for start in range(0, count, size):
            own = [_rows(each, count, start, size) for each in arrays]
            parts.append(self._results(own))
        return [np.concatenate(each)[:count] for each in zip(*parts, strict=True)]

    def _results(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        pairs = zip(arrays, self.part.boundary, strict=True)
        given = [
            array.astype(tensor.dtype.as_numpy_dtype, copy=False)
            for array, tensor in pairs
        ]
        found: list[Any] = self._run(*given)
        return found

    def _copy(self, values: Sequence[np.ndarray]) -> None:
        """Assigns the values of variables, which are the same on all devices."""
        dtypes = [each.dtype.as_numpy_dtype for each in self.copies]
        named = zip(self.part.copied, values, dtypes, strict=True)
        self._graph.load({n: v[0].astype(d, copy=False) for n, v, d in named})

    @functools.cached_property
    def _graph(self) -> HostGraph:
        return self.part.graph()

    @functools.cached_property
    def _size(self) -> int | None:
        """Returns the number of rows if all tensors have the same, or `None`."""
        shapes = [each.shape.as_list() for each in self.part.boundary]
        rows = {shape[0] for shape in shapes if shape}
        return rows.pop() if len(rows) == 1 else None

    @functools.cached_property
    def _run(self) -> Callable[..., Any]:
        element = self._graph.graph.as_graph_element
        return self._graph.callable([element(name) for name in self.names])


def _rows(array: np.ndarray, count: int, start: int, size: int) -> np.ndarray:
    """Returns a number of rows of an array; the last one is repeated if needed."""
    if array.shape[:1] != (count,):
        return array
    own = array[start : start + size]
    missing = [(0, size - len(own))] + [(0, 0)] * (array.ndim - 1)
    return np.pad(own, missing, mode="edge")


def on_host(graph: Any, tensors: PyTree, loops: Collection[str] = ()) -> PyTree:
    """Returns a pytree whose tensors that no device can compute are
    `HostTensor`s.

    Args:
        graph: The default graph.
        tensors: The pytree.
        loops: The names of loops that the host must run.
    """
    import tensorflow as tf

    leaves = [each for each in jax.tree.leaves(tensors) if tf.is_tensor(each)]
    behind = _behind(graph, leaves, loops)
    flat = [t for t in leaves if t.dtype == tf.string or t.op.name in behind]
    if not flat:
        return tensors
    part = cut(graph, flat, {}, loops)
    names = [each.name for each in flat]
    copies = [_in_one_row(graph.get_operation_by_name(n)) for n in part.copied]
    call = _GraphCall(part, names, copies)
    made = {
        name: HostTensor(call, number, [*part.boundary, *copies])
        for number, name in enumerate(names)
    }
    return jax.tree.map(
        lambda each: made.get(getattr(each, "name", None), each), tensors
    )


def _in_one_row(variable: Any) -> Any:
    """Returns the value of a variable with an axis for devices."""
    import tensorflow as tf

    dtype = variable.get_attr("dtype")
    value = tf.raw_ops.ReadVariableOp(resource=variable.outputs[0], dtype=dtype)
    return tf.expand_dims(value, 0)


def called_with_host_tensors(
    function: Callable[..., Any], tensors: PyTree
) -> Callable[..., Any]:
    """Returns a host function that also accepts tensors of the host."""
    leaves = jax.tree.leaves(tensors, is_leaf=is_host_tensor)
    if not any(map(is_host_tensor, leaves)):
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = with_host_tensors((args, kwargs), np.asarray)
        return function(*args, **kwargs)

    return call


def _behind(graph: Any, tensors: Sequence[Any], loops: Collection[str]) -> set[str]:
    """Returns the names of operations that depend on the host."""
    definition = definition_of(graph)
    found = set(loops)
    for op in reachable(graph, tensors):
        node = definition.nodes[op.name]
        if any(tensor.op.name in found for tensor in op.inputs) or is_for_host(
            op, node, definition.library
        ):
            found.add(op.name)
    return found
