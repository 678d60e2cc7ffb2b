"""A model rebuilt as a graph of TensorFlow operations."""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import jax
import keras
import numpy as np

from keras_tpu_estimator.base.common.user_code import SourceLine, is_of_user
from keras_tpu_estimator.base.upstream import keras_layers
from keras_tpu_estimator.engine.program.bound_model_fn import TraceOptions
from keras_tpu_estimator.export import processes
from keras_tpu_estimator.export.batching import BatchConfig
from keras_tpu_estimator.export.loading import LoadedModel, Request
from keras_tpu_estimator.export.served_model_fn import (
    SignatureOutput,
    set_weights,
    symbolic_model,
)
from keras_tpu_estimator.export.stablehlo import UnservableError
from keras_tpu_estimator.export.tensorflow_graph import Failure, Task, TensorNames

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef


_SCRIPT = pathlib.Path(__file__).with_name("tensorflow_graph.py")


_PLACES = ("ArgMax", "ArgMin")
_ON_THE_WAY = ("Cast", "Identity", "Reshape")


@dataclasses.dataclass(frozen=True)
class RebuiltModel:
    """A model whose layers have become TensorFlow operations.

    Its inputs are the variables in the order of `values`, and then the flat features.
    `lines` returns the user's lines of the flat outputs, whose structure is `outputs`.
    """

    graph: "GraphDef"
    inputs: Sequence[str]
    results: Sequence[str]
    values: Mapping[str, np.ndarray]
    outputs: jax.tree_util.PyTreeDef
    signatures: Mapping[str, SignatureOutput]
    batch_config: BatchConfig | None
    trial: Sequence[Request]
    lines: Callable[[], Sequence[SourceLine | None]]

    def call(
        self, variables: Sequence["tf.Tensor"], features: Sequence["tf.Tensor"]
    ) -> tuple[list["tf.Tensor"], dict[str, "tf.Tensor"]]:
        """Returns the flat outputs, and no new values of variables.

        The variables have the order of `values`, and the features the model's dtypes.
        """
        import tensorflow as tf

        def run(*features: Any) -> Any:
            # This graph may be that of a batch function, so tensors are copied into it.
            tensors = map(tf.identity, [*variables, *features])
            return tf.graph_util.import_graph_def(
                self.graph,
                input_map=dict(zip(self.inputs, tensors, strict=True)),
                return_elements=self.results,
                name="model",
            )

        if self.batch_config is not None:
            run = self.batch_config.batched(run)
        results = run(*features)
        # A dtype policy may widen the outputs.
        outputs = self.trial[0].outputs
        return [
            tf.cast(result, output.dtype)
            for result, output in zip(results, outputs, strict=True)
        ], {}


def rebuild(
    loaded: LoadedModel,
    options: TraceOptions | None = None,
    timeout_secs: float | None = None,
) -> RebuiltModel:
    """Rebuilds a model of Keras layers and `keras.ops` under TensorFlow.

    `UnservableError` is raised if Keras cannot rebuild it, or if it assigns variables.
    """
    if loaded.assigned:
        assignments = ", ".join(_assignments(loaded))
        raise UnservableError(
            "A model that is rebuilt under Keras's TensorFlow backend must not "
            f"assign variables. Received: assignments of {assignments}. Remove "
            "random numbers and counters in mode 'infer', or use "
            "RunConfig(export_backend='jax')."
        )
    leaves, tree = jax.tree.flatten(loaded.features)
    specs = [
        dataclasses.replace(spec, name=f"feature_{number}")
        for number, spec in enumerate(leaves)
    ]
    with (options or TraceOptions()).scope(), operation_lines() as lines:
        model = symbolic_model(
            loaded.served,
            jax.tree.unflatten(tree, specs),
            arrange=jax.tree.leaves,
        )
    set_weights(model, loaded.initial)
    graph, tensors = _graph(model, lines, timeout_secs)
    return RebuiltModel(
        graph=graph,
        inputs=[*tensors.variables, *tensors.features],
        results=tensors.outputs,
        values={
            variable.path: np.asarray(variable.value)
            for variable in (
                *model.trainable_variables,
                *model.non_trainable_variables,
            )
        },
        outputs=jax.tree.structure(dict.fromkeys(model.output, 0)),
        signatures=loaded.served.signatures,
        batch_config=loaded.served.batch_config,
        trial=loaded.trial,
        lines=loaded.lines,
    )


def _assignments(loaded: LoadedModel) -> list[str]:
    """Returns the assigned variables, with the lines of their new values."""
    lines = loaded.lines()[-len(loaded.assigned) :]
    return [
        repr(path) + (f" at {line}" if line else "")
        for path, line in zip(sorted(loaded.assigned), lines, strict=True)
    ]


def _graph(
    model: keras.Model,
    lines: Mapping[str, SourceLine],
    timeout_secs: float | None,
) -> tuple["GraphDef", TensorNames]:
    """Returns the model as a `GraphDef`, and the names of its tensors."""
    from tensorflow.core.framework import graph_pb2

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "graph.pb")
        try:
            process = subprocess.run(
                processes.command(_SCRIPT),
                input=json.dumps(Task(model.to_json(), path)),
                env=processes.environment(KERAS_BACKEND="tensorflow"),
                capture_output=True,
                encoding="utf-8",
                errors="backslashreplace",
                check=False,
                timeout=timeout_secs,
            )
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(
                "The process that rebuilds the model under Keras's TensorFlow "
                f"backend must finish within {timeout_secs} s. It is still "
                "running. Increase RunConfig(export_timeout_secs=...), or set "
                "it to None."
            ) from error
        if process.returncode:
            raise UnservableError(
                "A model that is rebuilt under Keras's TensorFlow backend must "
                "consist of layers and functions of Keras. "
                f"Received{_failure(process, lines)} Use "
                "RunConfig(export_backend='jax')."
            )
        graph = graph_pb2.GraphDef.FromString(pathlib.Path(path).read_bytes())
    tensors = TensorNames(*json.loads(process.stdout))
    return in_plain_ops(graph, [*itertools.chain(*tensors)]), tensors


def _failure(
    process: "subprocess.CompletedProcess[str]", lines: Mapping[str, SourceLine]
) -> str:
    """Returns the line and the error of a failed process."""
    try:
        failure = Failure(*json.loads(process.stdout))
    except ValueError:  # The process was killed.
        return f": {process.stdout.strip() or process.stderr[-2000:]}"
    user_lines = [lines[name] for name in failure.operations if name in lines]
    location = f" at {user_lines[-1]}" if user_lines else ""
    return f"{location}: {failure.error}"


@contextlib.contextmanager
def operation_lines() -> Iterator[dict[str, SourceLine]]:
    """Yields the user's lines of Keras operations on this thread, by their names."""
    lines: dict[str, SourceLine] = {}

    def note(operation: keras.Operation) -> None:
        line = _calling_line()
        if line is not None:
            lines[operation.name] = line

    with keras_layers.operations_watched(note):
        yield lines


def _calling_line() -> SourceLine | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_of_user(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith("<"):
        return None
    return SourceLine(frame.f_code.co_filename, frame.f_lineno)


def in_plain_ops(graph: "GraphDef", tensors: Collection[str]) -> "GraphDef":
    """Returns a graph's part that computes tensors, in widely supported operations.

    ONNX, OpenVINO and TensorFlow Lite lack `Bitcast` or `Erfc`.
    """
    nodes = {node.name: node for node in graph.node}
    for node in nodes.values():
        if node.op in _PLACES:
            _take_zeros_as_one(node, nodes)
        elif node.op == "Erfc":
            _become_erf(node, nodes, graph)
    needed = _all_that_make(tensors, {node.name: node for node in graph.node})
    used = type(graph)(versions=graph.versions, library=graph.library)
    used.node.extend(node for node in graph.node if node.name in needed)
    return used


def _take_zeros_as_one(node: "NodeDef", nodes: Mapping[str, "NodeDef"]) -> None:
    """Makes `ArgMax` and `ArgMin` treat -0.0 as 0.0.

    Keras tests the sign bit, for devices that flush denormal numbers to zero.
    """
    reader, selected = node, nodes[_node_name(node.input[0])]
    while selected.op in _ON_THE_WAY:
        reader, selected = selected, nodes[_node_name(selected.input[0])]
    if selected.op != "SelectV2":
        return
    condition, _, values = selected.input
    if _looks_at_bits(condition, values, nodes):
        reader.input[0] = values


def _looks_at_bits(tensor: str, values: str, nodes: Mapping[str, "NodeDef"]) -> bool:
    """Returns whether a tensor is computed from the bits of another one."""
    made_of = _all_that_make([tensor], nodes, {_node_name(values)})
    return any(
        nodes[name].op == "Bitcast" and nodes[name].input[0] == values
        for name in made_of
    )


def _all_that_make(
    tensors: Collection[str],
    nodes: Mapping[str, "NodeDef"],
    beyond: Collection[str] = (),
) -> set[str]:
    """Returns the nodes that compute tensors, without `beyond` and its inputs."""
    waiting, needed = list(tensors), set[str]()
    while waiting:
        name = _node_name(waiting.pop())
        if name not in needed and name not in beyond:
            needed.add(name)
            waiting.extend(nodes[name].input)
    return needed


def _become_erf(
    node: "NodeDef", nodes: Mapping[str, "NodeDef"], graph: "GraphDef"
) -> None:
    """Turns `erfc(x)` into `1 - erf(x)`, and `erfc(-x * c)` into `1 + erf(x * c)`.

    TensorFlow Lite recognizes GELU by the second form.
    """
    import tensorflow as tf

    def add(name: str, op: str, *inputs: str) -> "NodeDef":
        new = graph.node.add(name=f"{node.name}/{name}", op=op, input=inputs)
        new.attr["T"].CopyFrom(node.attr["T"])
        return new

    one = graph.node.add(name=f"{node.name}/one", op="Const")
    one.attr["dtype"].CopyFrom(node.attr["T"])
    one.attr["value"].tensor.CopyFrom(
        tf.make_tensor_proto(1, tf.as_dtype(node.attr["T"].type))
    )
    (argument,) = node.input
    product = nodes[_node_name(argument)]
    negated = nodes[_node_name(product.input[0])] if product.op == "Mul" else product
    if product.op == "Mul" and negated.op == "Neg":
        argument = add("scaled", "Mul", negated.input[0], product.input[1]).name
        node.op = "AddV2"
    else:
        node.op = "Sub"
    node.input[:] = [one.name, add("erf", "Erf", argument).name]


def _node_name(tensor: str) -> str:
    """Returns the name of the node that a tensor or a control input belongs to."""
    return tensor.removeprefix("^").split(":")[0]
