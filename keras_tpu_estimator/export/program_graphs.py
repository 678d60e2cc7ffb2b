"""The graphs of an export from a front end's program, which JAX traces."""

import dataclasses
from collections.abc import Callable

from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.engine.program.bound_model_fn import BoundModelFn
from keras_tpu_estimator.engine.program.steps import Program
from keras_tpu_estimator.export.export_plans import ExportSettings, GraphPlan
from keras_tpu_estimator.export.loading import load_model
from keras_tpu_estimator.export.lowering import lower
from keras_tpu_estimator.export.rebuilding import rebuild
from keras_tpu_estimator.export.served_model_fn import ServedModelFn
from keras_tpu_estimator.export.serving_graph import Model, ServingGraph, build_graph


@dataclasses.dataclass(frozen=True)
class ProgramGraphs:
    """A builder of graphs around compiled programs; see `GraphBuilder`.

    `make_program` is the method of a `FrontEnd`.
    """

    make_program: Callable[..., Program]
    model_fn: BoundModelFn
    settings: ExportSettings

    is_tried = True

    def build(self, plan: GraphPlan, checkpoint: str) -> ServingGraph:
        """Builds one graph, as an XLA op or as TensorFlow ops."""
        settings = self.settings

        def model_for(features: PyTree) -> Model:
            served = ServedModelFn(self.model_fn, plan.mode, plan.use_tpu)
            program = self.make_program(served, settings.seed, settings.options)
            loaded = load_model(served, program, checkpoint, features)
            is_served = plan.mode == ModeKeys.PREDICT
            if is_served and settings.backend == "tensorflow":
                return rebuild(loaded, settings.options, settings.timeout_secs)
            return lower(loaded)

        return build_graph(plan.receiver_fn, plan.kinds, model_for)
