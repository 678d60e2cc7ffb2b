"""Graphs that run on the host, each in a separate session."""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np

from keras_tpu_estimator.api.model_fn.spec_checks import HostFunction
from keras_tpu_estimator.base.common.logs import warn_once
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.tensorflow_session import host_session
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.tf1.graph import internals
from keras_tpu_estimator.tf1.graph.building import as_in_tf2
from keras_tpu_estimator.tf1.graph.definitions import LOOPS, reachable
from keras_tpu_estimator.tf1.graph.sessions import load_values, loader_of
from keras_tpu_estimator.tf1.graph.source_lines import line_of, raising_line
from keras_tpu_estimator.tf1.host.arguments import name_of, names_of
from keras_tpu_estimator.tf1.host.ordering import Order, keep_order

# The name scope of a function's arguments.
_ARGUMENTS = "arguments"
WRITERS = frozenset({"CreateSummaryDbWriter", "CreateSummaryFileWriter"})


class HostGraph:
    """A graph, and a session in which its variables are initialized.

    `handles` are the resources of its variables. The operations in `others` run first,
    with those that open event files.
    """

    def __init__(
        self,
        graph: Any,
        inputs: Sequence[Any],
        handles: Mapping[str, Any],
        initializers: Sequence[Any],
        table_initializers: Sequence[Any] = (),
    ):
        import tensorflow as tf

        self._inputs = inputs
        self._handles = handles
        with graph.as_default():
            self._reads = {
                name: tf.raw_ops.ReadVariableOp(
                    resource=handle,
                    dtype=handle.op.get_attr("dtype"),
                )
                for name, handle in handles.items()
            }
        self.graph = graph
        self._session = host_session(graph)
        self._initializers = initializers
        self._session.run([*initializers, *table_initializers, *_writers(graph)])

    def callable(self, fetches: Sequence[Any]) -> Callable[..., Any]:
        """Returns a function of arrays, one for each input, that runs fetches."""
        # Copying arrays that nothing reads would take most of the time.
        ops = {op.name for op in reachable(self.graph, fetches)}
        needed = [tensor.op.name in ops for tensor in self._inputs]
        run = self._session.make_callable(
            fetches, [*itertools.compress(self._inputs, needed)]
        )
        return lambda *arrays: run(*itertools.compress(arrays, needed))

    def assigning(self, name: str) -> Callable[..., Any]:
        """Returns a function of an array that assigns it to a variable."""
        value, assign = loader_of(self._handles[name])
        function: Callable[..., Any] = self._session.make_callable(assign, [value])
        return function

    def reset(self) -> None:
        """Initializes the variables again."""
        self._session.run(self._initializers)

    def values(self) -> dict[str, np.ndarray]:
        """Returns the values of the variables by name."""
        values: dict[str, np.ndarray] = self._session.run(self._reads)
        return values

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Assigns values to variables."""
        load_values(self._session, self._handles, values)

    def close(self) -> None:
        """Closes the session and the event files."""
        import tensorflow as tf

        writers = _writers(self.graph)
        with self.graph.as_default():
            closing = [
                tf.raw_ops.CloseSummaryWriter(writer=op.inputs[0]) for op in writers
            ]
        self._session.run(closing)
        self._session.close()


class CalledGraph(HostGraph):
    """The graph that a function builds for arrays of some shapes, and its result.

    `operations` selects from the graph and the result what runs together for each
    batch. `order` sets the order in which these operations use variables, which is by
    default that of their creation.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        tensors: PyTree,
        operations: Callable[[Any, PyTree], list[Any]],
        order: Order = keep_order,
    ):
        import tensorflow as tf

        v1 = tf.compat.v1
        graph = tf.Graph()
        with as_in_tf2(), graph.as_default():
            step = v1.train.create_global_step()
            count = len(graph.get_operations())
            with tf.name_scope(_ARGUMENTS):
                tree = jax.tree.map(
                    lambda a, name: v1.placeholder(a.dtype, a.shape, _node_name(name)),
                    tensors,
                    names_of(function, tensors),
                )
            self.returned = _returned(function, tree)
            new = graph.get_operations()[count:]
            variables = {
                variable.op.name: variable
                for variable in (*v1.local_variables(), *v1.global_variables())
            }
            tables = v1.tables_initializer()
        handles = {name: v.handle for name, v in variables.items()}
        self.operations = operations(graph, self.returned)
        inputs = jax.tree.leaves(tree)
        order(graph, self.operations, handles.values(), inputs)
        super().__init__(
            graph,
            inputs,
            handles,
            [v.initializer for v in variables.values()],
            [tables],
        )
        self._set_step: Callable[..., Any] | None = None
        if any(step.handle is tensor for op in new for tensor in op.inputs):
            self._set_step = self.assigning(step.op.name)

    def set_step(self, number: int) -> None:
        """Sets the global step, if an operation of the graph reads it."""
        if self._set_step is not None:
            self._set_step(np.int64(number))


class GraphFunction:
    """A function that builds graphs, as a function of NumPy arrays.

    `dtypes` is a pytree with the dtypes of its tensors. The function receives 64-bit
    numbers, which the devices do not have.
    """

    def __init__(self, function: Callable[..., Any], dtypes: PyTree):
        self._function = function
        self._dtypes = dtypes

    @classmethod
    def from_host_function(cls, host: HostFunction) -> tuple[Self, PyTree]:
        """Returns the function for the host, and the dtypes of its tensors."""
        dtypes = dtypes_of(host.tensors)
        return cls(host.function, dtypes), dtypes

    def arrays(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> PyTree:
        """Returns the arguments in the dtypes that the function expects."""
        # Under a trace this raises an error, and the caller skips the function.
        tensors: PyTree = jax.tree.map(np.asarray, kwargs or list(args))
        return jax.tree.map(
            lambda array, dtype: array.astype(dtype, copy=False),
            tensors,
            self._dtypes,
        )


def _node_name(argument: str) -> str:
    """Converts the name of an argument to a valid node name."""
    return re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", argument)


def dtypes_of(tensors: PyTree) -> PyTree:
    """Returns the NumPy dtypes of graph tensors."""
    return jax.tree.map(lambda tensor: np.dtype(tensor.dtype.as_numpy_dtype), tensors)


def shapes_of(tensors: PyTree) -> Any:
    """Returns a key that is equal for arrays that the same graph accepts."""
    leaves, structure = jax.tree.flatten(tensors)
    return (structure, *(leaf.shape for leaf in leaves))


def _returned(function: Callable[..., Any], tree: PyTree) -> Any:
    """Calls a function with tensors, and adds their names to errors."""
    try:
        return function(**tree) if isinstance(tree, dict) else function(*tree)
    except Exception as error:
        line = raising_line(error)
        tensors = ", ".join(
            f"{name} ({tensor.dtype.name} of shape {tensor.shape})"
            for name, tensor in zip(
                jax.tree.leaves(names_of(function, tree)),
                jax.tree.leaves(tree),
                strict=True,
            )
        )
        error.add_note(
            f"{name_of(function)} raised this while it built its graph"
            f"{'' if line is None else f', at {line}'}. Its arguments that "
            f"are tensors: {tensors or 'none'}. Pass numbers that it needs "
            "while it builds the graph as Python numbers."
        )
        raise


def _writers(graph: Any) -> list[Any]:
    """Returns the operations that open event files."""
    return [op for op in graph.get_operations() if op.type in WRITERS]


def growing_loops(graph: Any, fetches: Sequence[Any], mode: str) -> list[str]:
    """Returns the loops that the host runs outside of TRAIN, and warns about them."""
    loops = [op for op in reachable(graph, fetches) if op.type in LOOPS]
    growing = [op for op in loops if _grows(op)]
    call = "evaluate" if mode == ModeKeys.EVAL else "predict"
    for op in growing:
        warn_once(
            f"{call} runs {op.name}, made at {line_of(op)}, on the host, because "
            "its tensors change their shapes. Each batch copies the variables "
            "of this part to the host. To use the devices, pad the tensors to "
            "their final size before the loop."
        )
    return [op.name for op in growing]


def _grows(loop: Any) -> bool:
    """Returns whether the first round of a loop changes the shape of a tensor."""
    if all(output.shape.is_fully_defined() for output in loop.outputs):
        return False
    after = _shapes_after_a_round(loop)
    return any(
        not tensor.shape.is_compatible_with(shape)
        for tensor, shape in zip(loop.inputs, after, strict=True)
    )


def _shapes_after_a_round(loop: Any) -> list[Any]:
    """Returns the shapes of a loop's tensors after its first round."""
    import tensorflow as tf

    body = loop.get_attr("body").name
    definition, arguments, results = internals.definition_of_function(loop.graph, body)
    for node in definition.node:
        node.attr.pop("_class", None)
    with tf.Graph().as_default():
        input_map = {
            name: _like(tensor)
            for name, tensor in zip(arguments, loop.inputs, strict=True)
        }
        outputs = tf.graph_util.import_graph_def(definition, input_map, results)
    return [tensor.shape for tensor in outputs]


def _like(tensor: Any) -> Any:
    """Returns a tensor of the same shape, or a variable, without a value."""
    import tensorflow as tf

    if tensor.op.type != "VarHandleOp":
        return tf.compat.v1.placeholder(tensor.dtype, tensor.shape)
    get = tensor.op.get_attr
    return tf.raw_ops.VarHandleOp(dtype=get("dtype"), shape=get("shape"))
