"""The front end of a `model_fn` that builds TensorFlow 1 graphs."""

import dataclasses
from collections.abc import Callable
from typing import Any

from keras_tpu_estimator.engine.inputs import batch
from keras_tpu_estimator.engine.inputs.batch_source import BatchSource
from keras_tpu_estimator.engine.program.bound_model_fn import BoundModelFn, SpecFunction
from keras_tpu_estimator.engine.program.options import TraceOptions
from keras_tpu_estimator.engine.program.steps import Program
from keras_tpu_estimator.export.exporting import ExportSettings, GraphPlan
from keras_tpu_estimator.export.serving_graph import ServingGraph
from keras_tpu_estimator.files.formats import checkpoint_format as formats
from keras_tpu_estimator.ground.base.signatures import layers_of
from keras_tpu_estimator.ground.base.types import Features, Labels
from keras_tpu_estimator.ground.mesh.cores import ONE_CORE, Cores
from keras_tpu_estimator.tf1.input_graph import source_in_graph
from keras_tpu_estimator.tf1.program import TF1Program
from keras_tpu_estimator.tf1.serving_graph import ServedTF1ModelFn, build_tf1_graph


class TF1FrontEnd:
    """The front end of TF1 graphs. See `FrontEnd`."""

    checkpoint_format = formats.TENSORFLOW
    why_no_tables: str | None = (
        "With `embedding_config_spec`, `model_fn` must be written with Keras or "
        "JAX. Received one that builds TensorFlow 1 graphs. Make its "
        "columns with tf.feature_column.embedding_column, and leave out "
        "`embedding_config_spec`."
    )

    keras_model = None

    def make_program(
        self,
        call_model_fn: SpecFunction,
        seed: int | None = None,
        options: TraceOptions | None = None,
        cores: Cores = ONE_CORE,
    ) -> Program:
        """Returns the program of a graph, which is replicated on all devices."""
        del cores
        return TF1Program(call_model_fn, seed, options)

    def source_of(
        self, call: Callable[[], Any], number: int, seed: int | None
    ) -> BatchSource:
        """Calls an `input_fn` in a graph, and makes a source of its result."""
        return source_in_graph(call, number, seed)

    def pair_of(self, value: Any) -> tuple[Features, Labels]:
        """Returns the features and labels of a batch."""
        return batch.pair_of(value)

    def like(
        self, model_fn: Callable[..., Any], function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Marks a function as a TF1 `model_fn`, like another one."""
        kind: Any = next(
            type(each) for each in layers_of(model_fn) if hasattr(each, "front_end")
        )
        marked: Callable[..., Any] = kind(function)
        return marked

    def graph_builder(
        self, model_fn: BoundModelFn, settings: ExportSettings
    ) -> "TF1Graphs":
        """Returns the builder of the graphs of an export."""
        return TF1Graphs(model_fn, settings)


@dataclasses.dataclass(frozen=True)
class TF1Graphs:
    """Builds the graph of an export by another call of `model_fn`. See `GraphBuilder`.

    Attributes:
        model_fn: The user's function.
        settings: The export settings of the estimator.
    """

    model_fn: BoundModelFn
    settings: ExportSettings

    # The export is the model's own graph, so its results are not compared.
    is_tried = False

    def build(self, plan: GraphPlan, checkpoint: str) -> ServingGraph:
        """Builds one graph."""
        served = ServedTF1ModelFn(self.model_fn, plan.mode, plan.use_tpu)
        return build_tf1_graph(
            plan.receiver_fn, plan.kinds, served, checkpoint, self.settings.seed
        )


TF1 = TF1FrontEnd()
