"""Outputs of a `model_fn` that the host computes from those of the devices.

These are strings, and results of tables, Python or growing loops after the model.
"""

import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.api.model_fn.outside_compilation import (
    Call,
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

    It computes the tensors `names`. `rows` is the number of rows in the batch of one
    device.
    """

    part: Cut
    names: Sequence[str]
    rows: int
    # Two predictions on threads may copy the values of two checkpoints.
    _running: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def arguments(self, graph: Any) -> list[Any]:
        """Returns the tensors of the devices that `results` needs.

        Devices concatenate them, so those that are not rows of the batch get an axis.
        """
        import tensorflow as tf

        copied = [_value_of(graph.get_operation_by_name(n)) for n in self.part.copied]
        return [
            *(
                tensor if self._is_by_row(tensor) else tf.expand_dims(tensor, 0)
                for tensor in self.part.boundary
            ),
            *(tf.expand_dims(tensor, 0) for tensor in copied),
        ]

    def results(self, tensors: Sequence[Any]) -> list[Any]:
        """Returns the results for these arrays, which may come from several devices.

        The graph has a fixed number of rows, so smaller batches are padded.
        """
        arrays = [np.asarray(tensor) for tensor in tensors]
        received = arrays[: len(self.part.boundary)]
        by_row = zip(received, map(self._is_by_row, self.part.boundary), strict=True)
        count = next((len(array) for array, is_by_row in by_row if is_by_row), None)
        if count is None:
            devices = len(arrays[0]) if arrays else 1
        else:
            devices = -(-count // self.rows)
        with self._running:
            self._copy(arrays[len(received) :])
            outputs = self._joined(
                [self._of_device(received, n) for n in range(devices)]
            )
        if count in (None, devices * self.rows):
            return outputs
        return [output[:count] for output in outputs]

    def _is_by_row(self, tensor: Any) -> bool:
        shape = tensor.shape
        return bool(shape.rank and shape[0] == self.rows)

    def _of_device(self, arrays: Sequence[np.ndarray], number: int) -> list[np.ndarray]:
        """Returns the results for the part of a batch that one device has."""
        arguments = []
        for array, tensor in zip(arrays, self.part.boundary, strict=True):
            if self._is_by_row(tensor):
                share = _rows(array, number * self.rows, self.rows)
            else:
                share = array[number]
            arguments.append(share.astype(tensor.dtype.as_numpy_dtype, copy=False))
        outputs: list[np.ndarray] = self._run(*arguments)
        return outputs

    def _joined(self, parts: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
        """Returns the concatenated results of devices."""
        if len(parts) == 1:
            return [*parts[0]]
        columns = [*zip(*parts, strict=True)]
        for name, arrays in zip(self.names, columns, strict=True):
            shapes = [array.shape for array in arrays]
            if len({shape[1:] for shape in shapes}) > 1:
                raise ValueError(
                    "Tensors that the host computes after the devices must have the "
                    f"same shape on each device. Received: {name} of the shapes "
                    f"{shapes}. Use one device (use_tpu=False), or pad the tensor to "
                    "one shape."
                )
        return [np.concatenate(column) for column in columns]

    def _copy(self, values: Sequence[np.ndarray]) -> None:
        """Assigns the values of variables, which are the same on all devices."""
        find = self._graph.graph.get_operation_by_name
        copied = {}
        for name, value in zip(self.part.copied, values, strict=True):
            dtype = find(name).get_attr("dtype").as_numpy_dtype
            copied[name] = value[0].astype(dtype, copy=False)
        self._graph.load(copied)

    @functools.cached_property
    def _graph(self) -> HostGraph:
        return self.part.graph()

    @functools.cached_property
    def _run(self) -> Callable[..., Any]:
        element = self._graph.graph.as_graph_element
        return self._graph.callable([element(name) for name in self.names])


@dataclasses.dataclass(frozen=True)
class _WeakCall:
    """A reference to a call. The `GraphStep` holds the call itself.

    JAX keeps the structure of a step's outputs, which contains the reference, until the
    process ends.
    """

    reference: weakref.ref[_GraphCall]

    def results(self, tensors: Sequence[Any]) -> list[Any]:
        """Returns the results of the call."""
        call = self.reference()
        if call is None:
            raise RuntimeError(
                "Tensors of the host must be computed while their program exists."
            )
        return call.results(tensors)


def _rows(array: np.ndarray, start: int, size: int) -> np.ndarray:
    """Returns a number of rows of an array; the last one is repeated if needed."""
    rows = array[start : start + size]
    missing = [(0, size - len(rows))] + [(0, 0)] * (array.ndim - 1)
    return np.pad(rows, missing, mode="edge")


def _value_of(variable: Any) -> Any:
    """Returns the value of a variable."""
    import tensorflow as tf

    dtype = variable.get_attr("dtype")
    return tf.raw_ops.ReadVariableOp(resource=variable.outputs[0], dtype=dtype)


def on_host(
    graph: Any, tensors: PyTree, rows: int, loops: Collection[str] = ()
) -> tuple[PyTree, Call | None]:
    """Replaces the tensors that no device can compute by `HostTensor`s.

    Also returns their call, which exists as long as the caller holds it. The operations
    are added to the default graph `graph`, for `rows` rows per device. `loops` are the
    names of loops that the host must run.
    """
    import tensorflow as tf

    leaves = [leaf for leaf in jax.tree.leaves(tensors) if tf.is_tensor(leaf)]
    behind = _behind(graph, leaves, loops)
    flat = [t for t in leaves if t.dtype == tf.string or t.op.name in behind]
    if not flat:
        return tensors, None
    part = cut(graph, flat, {}, loops)
    names = [tensor.name for tensor in flat]
    call = _GraphCall(part, names, rows)
    arguments = call.arguments(graph)
    weak = _WeakCall(weakref.ref(call))
    host_tensors = {
        name: HostTensor(weak, number, arguments) for number, name in enumerate(names)
    }
    replaced = jax.tree.map(
        lambda leaf: host_tensors.get(getattr(leaf, "name", None), leaf), tensors
    )
    return replaced, call


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
    dependents = set(loops)
    for op in reachable(graph, tensors):
        node = definition.nodes[op.name]
        if any(tensor.op.name in dependents for tensor in op.inputs) or is_for_host(
            op, node, definition.library
        ):
            dependents.add(op.name)
    return dependents
