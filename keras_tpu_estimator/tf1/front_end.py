"""The front end and the program of a `model_fn` that builds TensorFlow 1 graphs."""

import dataclasses
import functools
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import jax

from keras_tpu_estimator.api.hooks.session_run_hook import Hook
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.params import layers_of
from keras_tpu_estimator.base.common.types import Features, Labels
from keras_tpu_estimator.base.common.waiting import announce
from keras_tpu_estimator.base.mesh.cores import ONE_CORE, Cores
from keras_tpu_estimator.engine.inputs import batch
from keras_tpu_estimator.engine.inputs.batch_source import BatchSource
from keras_tpu_estimator.engine.program.bound_model_fn import (
    BoundModelFn,
    SpecFunction,
    TraceOptions,
)
from keras_tpu_estimator.engine.program.steps import (
    BatchLayout,
    Program,
    ReadAgainError,
    Step,
    StepInput,
)
from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.export.export_plans import ExportSettings, GraphPlan
from keras_tpu_estimator.export.serving_graph import ServingGraph
from keras_tpu_estimator.files.formats import registry as formats
from keras_tpu_estimator.front_ends.front_end import FrontEnd
from keras_tpu_estimator.tf1.graph.model_graph import ModelGraph, build
from keras_tpu_estimator.tf1.graph.sparse_features import from_parts
from keras_tpu_estimator.tf1.graph.variables import enter, enter_repeats, enter_seed
from keras_tpu_estimator.tf1.host.input_graph import source_in_graph
from keras_tpu_estimator.tf1.host.metric_session import GraphMetrics
from keras_tpu_estimator.tf1.host.preprocessing import (
    HostPart,
    as_fed,
    first_rows,
    grown,
    is_dense,
    key_of,
    needs_host,
    rows_in,
    size_of_input,
    without_values,
)
from keras_tpu_estimator.tf1.host.serving_graph import ServedTF1ModelFn, build_tf1_graph
from keras_tpu_estimator.tf1.host.tensorflow_hook import TensorFlowHook
from keras_tpu_estimator.tf1.lift.graph_step import GraphStep


class TF1Program:
    """The program of a `model_fn` that builds TF1 graphs.

    `call_model_fn` is a function of features, labels, mode and the additional `params`
    that returns a spec of `tf1`. `store` contains the variables. Options that graphs do
    not support raise an error.
    """

    def __init__(
        self,
        call_model_fn: Callable[..., Any],
        seed: int | None = None,
        options: TraceOptions | None = None,
    ):
        self._options = TraceOptions() if options is None else options
        self._options.refuse(
            "a TF1 model_fn builds its own graph, which does not support it"
        )
        self.store = VariableStore(seed)
        self._call_model_fn = call_model_fn
        self._seed = seed
        enter_seed(self.store, secrets.randbits(32) if seed is None else seed)
        self._steps: dict[Any, Step] = {}
        self._host_parts: dict[Any, HostPart] = {}
        self._metrics = GraphMetrics()
        self.reads_all = False

    def step(self, mode: str, example: StepInput) -> Step:
        """Returns the step for inputs of this shape, which is converted once."""
        key = (mode, example.key)
        if key not in self._steps:
            model = self._model(mode, example)
            if not isinstance(example.features, batch.Hosted):
                self._check_sizes(model, mode)
            step = GraphStep(
                model, mode, example, self._metrics, self._options.random_bits
            )
            enter(self.store, model, step.local, step.on_host)
            if not step.counts_once:
                enter_repeats(self.store)
            self._steps[key] = step.of_all_cores()
        return self._steps[key]

    def read(
        self,
        mode: str,
        layout: BatchLayout,
        features: Features,
        labels: Labels,
        size: int | None = None,
    ) -> tuple[Features, Labels]:
        """Returns what the devices receive for a batch; see `ReadsBatches`."""
        if not self.reads_all and is_dense((features, labels)):
            return features, labels
        try:
            pair = from_parts((features, labels))
        except (TypeError, ValueError):  # The checks of batches report it.
            return features, labels
        if not (self.reads_all and rows_in(pair)) and not needs_host(pair):
            return features, labels
        features, labels = pair
        if mode == ModeKeys.PREDICT:
            labels = None
        features, labels = jax.tree.map(as_fed, (features, labels))
        present = rows_in((features, labels))
        size = max(present, size or 0)
        if present < size:
            features, labels = grown((features, labels), size)
        example = without_values(layout.step_input(features, labels))
        key = mode, key_of(example)
        if key not in self._host_parts:
            make = functools.partial(self._model, mode, example)
            self._host_parts[key] = HostPart(make, mode, example)
        part = self._host_parts[key]
        tensors = part.tensors(features, labels)
        if present < size:
            tensors = first_rows(tensors, present)
        return batch.Hosted(tensors, part), None

    def _check_sizes(self, model: ModelGraph, mode: str) -> None:
        """Checks that no size depends on values that only the devices have."""
        size = size_of_input(model, mode)
        if size is None:
            return
        self.reads_all = True
        raise ReadAgainError(
            "On several hosts, or for batches of another shape than the first, sizes "
            f"must not depend on values of the input. Received: {size}. Compute the "
            "size from static shapes such as `x.shape`, or from numbers in `params`."
        )

    def _model(self, mode: str, example: StepInput) -> ModelGraph:
        """The graph for inputs of this shape."""
        announce(f"Calling model_fn for mode {mode!r}")
        if isinstance(example.features, batch.Hosted):
            features, _ = example.of_one_call()
            return features.part.model(features.tensors)
        return build(self._call_model_fn, mode, example, self._seed)


class TF1FrontEnd(FrontEnd):
    """The front end of TF1 graphs."""

    checkpoint_format = formats.TENSORFLOW
    has_original_summaries = True
    why_no_tables = (
        "With `embedding_config_spec`, `model_fn` must be written with Keras or "
        "JAX. Received one that builds TensorFlow 1 graphs. Make its "
        "columns with tf.feature_column.embedding_column, and omit "
        "`embedding_config_spec`."
    )

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
        self,
        call: Callable[[], Any],
        number: int,
        seed: int | None,
        hooks: Sequence[Hook] = (),
    ) -> BatchSource:
        """Calls an `input_fn` in a graph, and makes a source of its result."""
        initializing = [
            hook
            for hook in hooks
            if isinstance(hook, TensorFlowHook) and hook.may_initialize
        ]
        return source_in_graph(call, number, seed, initializing)

    def like(
        self, model_fn: Callable[..., Any], function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Marks a function as a TF1 `model_fn`, like another one."""
        kind: Any = next(
            type(layer) for layer in layers_of(model_fn) if hasattr(layer, "front_end")
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
    """A `GraphBuilder` that builds an export's graph by another call of `model_fn`."""

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
