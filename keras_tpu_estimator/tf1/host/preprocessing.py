"""The host's part of a `model_fn`, from a batch to the devices' arguments.

It runs in the thread that reads the input, batch by batch. Devices hold strings as
bytes of one length. Strings that a `model_fn` passes on to predictions or metrics stay
with the rows of their batch: through stacks, shards and padding.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import Features, Labels, PyTree
from keras_tpu_estimator.engine.inputs.unbatched import Unbatched
from keras_tpu_estimator.engine.program.steps import StepInput
from keras_tpu_estimator.tf1.graph import internals
from keras_tpu_estimator.tf1.graph.definitions import definition_of, reachable
from keras_tpu_estimator.tf1.graph.lookups import borders_of, columns_for, filled
from keras_tpu_estimator.tf1.graph.model_graph import ModelGraph
from keras_tpu_estimator.tf1.graph.source_lines import line_of
from keras_tpu_estimator.tf1.graph.sparse_features import SparseArray
from keras_tpu_estimator.tf1.host import summaries
from keras_tpu_estimator.tf1.host.graph_cut import part_of, table_initializers
from keras_tpu_estimator.tf1.host.graph_partition import (
    HostSplit,
    size_of_values,
    split,
)
from keras_tpu_estimator.tf1.host.host_graph import HostGraph
from keras_tpu_estimator.tf1.host.host_sizes import SizeUse, as_shape, from_shape

# The last bytes of each row contain the length of the string.
_LENGTH = 4
_LEAST = 16


def as_bytes(strings: np.ndarray, least: int = _LEAST) -> np.ndarray:
    """Returns strings as bytes, on one more axis with at least `least` bytes each.

    The default makes the shapes of batches equal in most cases.
    """
    flat = [*strings.ravel()]
    longest = max([least, *map(len, flat)])
    size = 1 << (longest - 1).bit_length()
    rows = [
        string.ljust(size, b"\0") + len(string).to_bytes(_LENGTH, "little")
        for string in flat
    ]
    encoded = np.frombuffer(b"".join(rows), np.uint8)
    return encoded.reshape(*strings.shape, size + _LENGTH)


def from_bytes(array: np.ndarray) -> np.ndarray:
    """Returns the strings that `as_bytes` encoded."""
    *shape, size = array.shape
    strings = np.empty(array.size // size, object)
    for position, row in enumerate(np.ascontiguousarray(array).reshape(-1, size)):
        length = int.from_bytes(row[-_LENGTH:].tobytes(), "little")
        strings[position] = row[:length].tobytes()
    return strings.reshape(shape)


def decoded(tensor: Any, shape: Any) -> Any:
    """Returns operations that decode such bytes to strings of a shape."""
    import tensorflow as tf

    with tf.name_scope("kte_strings"):
        strings = tf.numpy_function(from_bytes, [tensor], tf.string, stateful=False)
    strings.set_shape(shape)
    return strings


def normalized(array: np.ndarray) -> np.ndarray:
    """Returns strings, but no other values, as bytes in an array of objects."""
    if array.dtype.kind == "U":
        array = np.char.encode(array, "utf-8")
    strings = np.empty(array.shape, object)
    for position, value in enumerate(array.ravel()):
        if isinstance(value, str):
            value = value.encode()
        if not isinstance(value, bytes):
            raise ValueError(
                "An array of objects must contain strings. Received: "
                f"{value!r} of type {type(value).__name__}. Return numbers or "
                "strings from input_fn."
            )
        strings.flat[position] = value
    return strings


_ROWS = "rows"
_SPEC_TENSORS = (
    "loss",
    "train_op",
    "predictions",
    "eval_metric_ops",
    "eval_metrics",
    "train_metrics",
    "host_call",
)


class HostPart:
    """Runs the host's part of a graph on each batch, to get the inputs of the devices.

    It serves one mode and batches of one shape. `make` calls `model_fn` in a new graph.
    `example` has the user's features and labels.
    """

    def __init__(self, make: Callable[[], ModelGraph], mode: str, example: StepInput):
        self._make = make
        self._replicas = example.cores.topology.num_replicas if example.is_split else 1
        self._rows = example.additional["batch_size"]
        self._mode = mode
        self._model: ModelGraph | None = make()
        host_split = self._split(self._model)
        self._names = [tensor.name for tensor in host_split.tensors]
        self._sizes = {_size_name(use): use for use in host_split.sizes}
        self._borders = borders_of(self._model.graph)
        self._columns: dict[str, int] = {}
        self._bytes: dict[str, int] = {}
        # The graph keeps its Python functions alive.
        self._graph = self._model.graph
        self._run = _runner(self._model, host_split)

    def tensors(self, features: Features, labels: Labels) -> dict[str, Any]:
        """Computes the tensors that the devices receive, by name."""
        leaves = jax.tree.leaves((features, labels))
        if self._replicas == 1:
            parts = [self._run(leaves)]
        else:
            size = self._rows
            parts = [
                self._run([leaf[n * size : (n + 1) * size] for leaf in leaves])
                for n in range(self._replicas)
            ]
        columns = [*zip(*parts, strict=True)]
        count = len(self._names)
        received = {
            name: self._joined(name, arrays)
            for name, arrays in zip(self._names, columns[:count], strict=True)
        }
        for name, arrays in zip(self._sizes, columns[count:], strict=True):
            received[name] = self._size(name, arrays)
        # The size of the batch, even if the model reads no row.
        return received | {_ROWS: np.zeros(self._rows * self._replicas, "uint8")}

    def model(self, tensors: Mapping[str, Any]) -> ModelGraph:
        """Returns the devices' part of the graph, for one device's tensors by name."""
        model, self._model = self._model or self._make(), None
        return _for_devices(model, self._split(model), tensors)

    def _split(self, model: ModelGraph) -> HostSplit:
        """Splits the graph of a model.

        With several devices, tensors of summaries would need one row for each example.
        """
        fetches = _fetches_of(model, self._mode)
        if self._mode == ModeKeys.TRAIN and self._replicas == 1:
            fetches += [op.inputs[1] for op in _summaries(model)]
        return split(model.graph, model.inputs, fetches, self._rows)

    def _size(self, name: str, arrays: Sequence[np.ndarray]) -> Unbatched:
        """Returns a size for all replicas."""
        if any(not np.array_equal(array, arrays[0]) for array in arrays[1:]):
            op, _ = self._sizes[name]
            raise ValueError(
                "Sizes that model_fn computes from values of the input must be "
                f"the same on each device. Received {[*map(np.ndarray.tolist, arrays)]}"
                f" for {op.name} ({op.type}), made at {line_of(op)}. Compute the "
                "size from static shapes such as `x.shape`, or use one device "
                "(use_tpu=False)."
            )
        return Unbatched(as_shape(arrays[0]))

    def _joined(self, name: str, arrays: Sequence[np.ndarray]) -> Any:
        """Returns the values of a tensor for all replicas."""
        if arrays[0].dtype == object:
            least = max(self._bytes.get(name, 1), *map(_longest, arrays), 1)
            self._bytes[name] = least
            arrays = [as_bytes(array, least) for array in arrays]
        if name in self._borders:
            widest = max(columns_for(array.shape[-1]) for array in arrays)
            # Another thread may change the entry, so that it is not read again.
            columns = max(self._columns.get(name, 1), widest)
            self._columns[name] = columns
            missing = self._borders[name]
            arrays = [filled(array, missing, columns) for array in arrays]
        is_by_row = all(array.shape[:1] == (self._rows,) for array in arrays)
        if len(arrays) == 1:
            return arrays[0] if is_by_row else Unbatched(arrays[0])
        if not is_by_row or len({array.shape for array in arrays}) > 1:
            tensor = self._graph.get_tensor_by_name(name)
            raise ValueError(
                "Tensors that model_fn computes from strings or sparse tensors must "
                "have one row for each example, and the same shape on each device. "
                f"Received: {name}, made at {line_of(tensor.op)}, of the shapes "
                f"{[array.shape for array in arrays]}. Use one device "
                "(use_tpu=False), or compute it in input_fn."
            )
        return np.concatenate(arrays)


def _size_name(use: SizeUse) -> str:
    return f"size {use.tensor.name}"


def _summaries(model: ModelGraph) -> list[Any]:
    """Returns the operations of the summaries of training."""
    return summaries.operations(model.graph, model.scaffold.summary_op)


def _fetches_of(model: ModelGraph, mode: str) -> list[Any]:
    """Returns the tensors and operations of a spec that a mode needs."""
    spec = model.spec
    unused = {"train_op"} if mode != ModeKeys.TRAIN else {"predictions"}
    if mode == ModeKeys.EVAL:
        unused.add("predictions")
    else:
        unused |= {"eval_metric_ops", "eval_metrics"}
    names = [name for name in _SPEC_TENSORS if name not in unused]
    values = [getattr(spec, name, None) for name in names]
    return [element for element in _leaves(values) if _is_element(element)]


def size_of_input(model: ModelGraph, mode: str) -> str | None:
    """Describes a size of a step that depends on values of the input, if any."""
    use = size_of_values(model.graph, model.inputs, _fetches_of(model, mode))
    if use is None:
        return None
    return f"{use.op.name} ({use.op.type}), made at {line_of(use.op)}"


def _leaves(tree: PyTree) -> list[Any]:
    leaves: list[Any] = jax.tree.leaves(tree)
    return leaves


def _is_element(value: Any) -> bool:
    import tensorflow as tf

    return isinstance(value, tf.Operation) or bool(tf.is_tensor(value))


def _longest(strings: np.ndarray) -> int:
    return max(map(len, strings.ravel()), default=1)


def _runner(
    model: ModelGraph, host_split: HostSplit
) -> Callable[[Sequence[Any]], list[np.ndarray]]:
    """Returns a function of a batch's leaves that runs the host's part."""
    import tensorflow as tf

    sizes = {_size_name(use): use.tensor for use in host_split.sizes}
    fetches = [*host_split.tensors, *sizes.values()]
    tables = table_initializers(model.graph, fetches)
    ops = reachable(model.graph, [*fetches, *tables])
    included = _without_variables(ops)
    names = [op.name for op in ops]
    definition = part_of(definition_of(model.graph), names, included)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(definition, name="")
    present = [tensor.op.name in included for tensor in model.inputs]
    inputs = [
        graph.get_tensor_by_name(tensor.name)
        for tensor, is_present in zip(model.inputs, present, strict=True)
        if is_present
    ]
    initializers = [graph.get_operation_by_name(op.name) for op in tables]
    host = HostGraph(graph, inputs, {}, initializers)
    fetch = host.callable([graph.get_tensor_by_name(t.name) for t in fetches])

    def run(leaves: Sequence[Any]) -> list[np.ndarray]:
        arrays = [array for leaf in leaves for array in _arrays(leaf)]
        arguments = [
            a for a, is_present in zip(arrays, present, strict=True) if is_present
        ]
        outputs: list[np.ndarray] = [np.asarray(value) for value in fetch(*arguments)]
        return outputs

    return run


def _without_variables(ops: Sequence[Any]) -> set[str]:
    """Returns the names of operations that depend on no variable."""
    independent = set[str]()
    for op in ops:
        before = {*(tensor.op for tensor in op.inputs), *op.control_inputs}
        if op.type != "VarHandleOp" and all(
            operation.name in independent for operation in before
        ):
            independent.add(op.name)
        elif op.inputs and all(tensor.op.name in independent for tensor in op.inputs):
            # Its control inputs are omitted.
            independent.add(op.name)
    return independent


def _arrays(leaf: Any) -> Sequence[np.ndarray]:
    """Returns the arrays for the placeholders of a feature."""
    if not isinstance(leaf, SparseArray):
        return [leaf]
    indices, values, shape = leaf.parts
    return [indices, values, shape]


def _for_devices(
    model: ModelGraph,
    host_split: HostSplit,
    tensors: Mapping[str, Any],
) -> ModelGraph:
    """Returns a model's graph with placeholders for the results of the host."""
    import tensorflow as tf

    v1 = tf.compat.v1
    inputs, moved = [], {}
    with model.graph.as_default(), tf.name_scope("kte_from_host"):
        for tensor in host_split.tensors:
            leaf = tensors[tensor.name]
            value = getattr(leaf, "value", leaf)
            is_string = tensor.dtype == tf.string
            dtype = tf.uint8 if is_string else tensor.dtype
            placeholder = v1.placeholder(dtype, value.shape)
            inputs.append(placeholder)
            moved[tensor.name] = (
                decoded(placeholder, value.shape[:-1]) if is_string else placeholder
            )
        sizes: dict[str, Any] = {}
        for use in host_split.sizes:
            name = _size_name(use)
            if name not in sizes:
                shape = tensors[name].value.shape
                inputs.append(v1.placeholder(tf.uint8, shape))
                sizes[name] = tf.constant(from_shape(shape, use.tensor))
            internals.set_input(use.op, use.number, sizes[name])
        inputs.append(v1.placeholder(tf.uint8, tensors[_ROWS].shape))
    for op in [*host_split.ops, *_summaries(model)]:
        for number, tensor in enumerate(op.inputs):
            if tensor.name in moved:
                internals.set_input(op, number, moved[tensor.name])
        controls = [
            control
            for control in op.control_inputs
            if control.name not in host_split.hosted
        ]
        if len(controls) < len(op.control_inputs):
            internals.set_control_inputs(op, controls)
    return dataclasses.replace(
        model, spec=_with_moved(model.spec, moved), inputs=inputs
    )


def _with_moved(spec: Any, moved: Mapping[str, Any]) -> Any:
    """Returns a spec in which other tensors replace those of the host."""

    def one(value: Any) -> Any:
        return moved.get(value.name, value) if _is_element(value) else value

    fields = {
        name: jax.tree.map(one, getattr(spec, name), is_leaf=lambda x: x is None)
        for name in _SPEC_TENSORS
        if getattr(spec, name, None) is not None
    }
    copy = object.__new__(type(spec))
    for field in dataclasses.fields(spec):
        value = fields.get(field.name, getattr(spec, field.name))
        object.__setattr__(copy, field.name, value)
    return copy


def is_dense(tree: PyTree) -> bool:
    """Returns whether a batch has only dense arrays of numbers, which devices hold."""
    leaves = jax.tree.leaves(tree, is_leaf=_may_be_sparse)
    return all(type(x) is np.ndarray and x.dtype.kind not in "OSU" for x in leaves)


def _may_be_sparse(node: Any) -> bool:
    return isinstance(node, tuple) and hasattr(node, "indices")


def needs_host(tree: PyTree) -> bool:
    """Returns whether a batch has examples that no device can hold."""
    leaves = jax.tree.leaves(tree)
    return any(
        isinstance(leaf, SparseArray) or _has_strings(leaf) for leaf in leaves
    ) and all(np.shape(leaf)[:1] != (0,) for leaf in leaves)


def _has_strings(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    if not isinstance(dtype, np.dtype):
        return getattr(dtype, "name", None) == "string"
    if dtype.kind == "O":
        return leaf.size > 0 and isinstance(leaf.flat[0], str | bytes)
    return dtype.kind in "SU"


def as_fed(leaf: Any) -> Any:
    """Returns a feature in the form that a session accepts."""
    if isinstance(leaf, SparseArray):
        is_string = leaf.values.dtype.kind in "OSU"
        values = normalized(leaf.values) if is_string else leaf.values
        return SparseArray(leaf.indices, values, leaf.shape)
    return normalized(np.asarray(leaf)) if _has_strings(leaf) else np.asarray(leaf)


def without_values(example: StepInput) -> StepInput:
    """Returns the same input without its values."""
    features, labels = jax.tree.map(_empty, (example.features, example.labels))
    return dataclasses.replace(example, features=features, labels=labels)


def _empty(leaf: Any) -> Any:
    if not isinstance(leaf, SparseArray):
        return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
    cells = np.zeros([0, len(leaf.shape)], "int64")
    return SparseArray(cells, np.zeros(0, leaf.dtype), leaf.shape)


def key_of(example: StepInput) -> Any:
    """Returns a key that is equal for batches that one graph serves."""
    leaves, structure = jax.tree.flatten((example.features, example.labels))
    forms = tuple(
        ("sparse", leaf.shape[0], len(leaf.shape), leaf.dtype)
        if isinstance(leaf, SparseArray)
        else (leaf.shape, leaf.dtype)
        for leaf in leaves
    )
    return (
        forms,
        structure,
        example.cores,
        example.is_split,
        example.additional["use_tpu"],
    )


def rows_in(tree: PyTree) -> int:
    """Returns the number of rows of a batch."""
    return max((leaf.shape[0] for leaf in _leaves(tree) if leaf.shape), default=0)


def grown(tree: PyTree, size: int) -> PyTree:
    """Returns a batch with more rows: repetitions of the last, or empty ones."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, SparseArray):
            return SparseArray(leaf.indices, leaf.values, (size, *leaf.shape[1:]))
        last = np.repeat(leaf[-1:], size - len(leaf), axis=0)
        return np.concatenate([leaf, last])

    return jax.tree.map(one, tree)


def first_rows(tensors: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Returns the tensors of the first rows of a batch."""
    return {
        name: value if isinstance(value, Unbatched) else value[:count]
        for name, value in tensors.items()
    }
