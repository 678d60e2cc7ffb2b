"""A model rebuilt as a graph of TensorFlow's own ops."""

import dataclasses
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import keras
import numpy as np

from keras_tpu_estimator.engine.program.options import TraceOptions
from keras_tpu_estimator.export.batching import BatchConfig
from keras_tpu_estimator.export.loading import LoadedModel, Request
from keras_tpu_estimator.export.operation_lines import noted_operations
from keras_tpu_estimator.export.plain_ops import in_plain_ops
from keras_tpu_estimator.export.served_model_fn import SignatureOutput
from keras_tpu_estimator.export.stablehlo import UnservableError
from keras_tpu_estimator.export.symbolic import set_weights, symbolic_model
from keras_tpu_estimator.ground.base.source_line import SourceLine

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef

_SCRIPT = pathlib.Path(__file__).with_name("tensorflow_graph.py")


@dataclasses.dataclass(frozen=True)
class RebuiltModel:
    """A model whose layers have become TensorFlow's ops.

    Attributes:
        graph: The `GraphDef`.
        inputs: Names of its variables, in the order of `values`, and then of
            its flat features.
        results: Names of its outputs.
        values: Values of the variables by path.
        outputs: The nest of the program's outputs.
        signatures: What each signature returns.
        batch_config: How requests are put together, or `None`.
        trial: Requests by which the model can be checked.
        lines: Finds the user's lines that make the flat outputs.
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
        """Calls the model with TensorFlow's tensors.

        Args:
            variables: The variables, in the order of `values`.
            features: The flat features, in the model's dtypes.

        Returns:
            The flat outputs, and new values of variables, of which there are
            none.
        """
        import tensorflow as tf

        def run(*features: Any) -> Any:
            # Of this graph, which may be that of a function for batches.
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
        # A dtype policy widens what leaves the model.
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
    """Rebuilds a model of Keras's layers and `keras.ops` under TensorFlow.

    Args:
        loaded: The model.
        options: As in a `Program`.
        timeout_secs: Seconds that it may take. Defaults to any time.

    Raises:
        ValueError: `model_fn` does more than Keras's symbols can.
        UnservableError: Keras cannot rebuild it, or it assigns variables.
        TimeoutError: It has not done so in time.
    """
    if loaded.assigned:
        assignments = ", ".join(_assignments(loaded))
        raise UnservableError(
            "A model that is rebuilt under Keras's TensorFlow backend must not "
            f"assign variables. Received assignments of: {assignments}. Leave "
            "out what is random or counts in mode 'infer', or use "
            "RunConfig(export_backend='jax')."
        )
    leaves, nest = jax.tree.flatten(loaded.features)
    specs = [
        dataclasses.replace(spec, name=f"feature_{number}")
        for number, spec in enumerate(leaves)
    ]
    with (options or TraceOptions()).scope(), noted_operations() as lines:
        model = symbolic_model(
            loaded.served,
            jax.tree.unflatten(nest, specs),
            arrange=jax.tree.leaves,
        )
    set_weights(model, loaded.known)
    graph, tensors = _graph(model, lines, timeout_secs)
    return RebuiltModel(
        graph=graph,
        inputs=[*tensors["variables"], *tensors["features"]],
        results=tensors["outputs"],
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
    """Returns what a model assigns, with the lines of new values."""
    lines = loaded.lines()[-len(loaded.assigned) :]
    return [
        repr(path) + (f" at {line}" if line else "")
        for path, line in zip(sorted(loaded.assigned), lines, strict=True)
    ]


def _graph(
    model: keras.Model,
    lines: Mapping[str, SourceLine],
    timeout_secs: float | None,
) -> tuple["GraphDef", Mapping[str, Sequence[str]]]:
    """The model as a `GraphDef`, and the names of its tensors."""
    from tensorflow.core.framework import graph_pb2

    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "-1",
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        # What it reads and writes, on Windows as well.
        "PYTHONUTF8": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "graph.pb")
        try:
            done = subprocess.run(
                # -P keeps this folder's modules from standing in for others.
                [sys.executable, "-P", str(_SCRIPT)],
                input=json.dumps({"model": model.to_json(), "path": path}),
                env=environment,
                capture_output=True,
                encoding="utf-8",
                errors="backslashreplace",
                check=False,
                timeout=timeout_secs,
            )
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(
                "A process rebuilds the model under Keras's TensorFlow "
                f"backend. Expected this to end in {timeout_secs} s; it was "
                "still running. Set RunConfig(export_timeout_secs=...) "
                "higher, or to None."
            ) from error
        if done.returncode:
            raise UnservableError(
                "The model cannot be rebuilt under Keras's TensorFlow "
                "backend. Expected only layers and functions of Keras. "
                f"Received{_failure(done, lines)} Use "
                "RunConfig(export_backend='jax')."
            )
        graph = graph_pb2.GraphDef.FromString(pathlib.Path(path).read_bytes())
    tensors = json.loads(done.stdout)
    return in_plain_ops(graph, [*itertools.chain(*tensors.values())]), tensors


def _failure(
    done: "subprocess.CompletedProcess[str]", lines: Mapping[str, SourceLine]
) -> str:
    """Returns the line and the error of a process that has failed."""
    try:
        failure = json.loads(done.stdout)
    except ValueError:  # It was killed.
        return f": {done.stdout.strip() or done.stderr[-2000:]}"
    known = [lines[name] for name in failure["operations"] if name in lines]
    place = f" at {known[-1]}" if known else ""
    return f"{place}: {failure['error']}"
