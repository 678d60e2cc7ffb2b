"""The front end of a `model_fn` written with Keras or JAX."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import keras

from keras_tpu_estimator.api.hooks.session_run_hook import Hook
from keras_tpu_estimator.api.model_fn.initialization import initializing
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import Features, Labels, PyTree, TensorLike
from keras_tpu_estimator.base.common.waiting import announce
from keras_tpu_estimator.base.mesh.cores import ONE_CORE, Cores
from keras_tpu_estimator.base.tracing.identity import check_apart
from keras_tpu_estimator.engine.inputs import batch
from keras_tpu_estimator.engine.inputs.batch_source import BatchSource
from keras_tpu_estimator.engine.inputs.request import source_of_call
from keras_tpu_estimator.engine.program.bound_model_fn import (
    BoundModelFn,
    SpecFunction,
    TraceOptions,
    inputs,
)
from keras_tpu_estimator.engine.program.steps import Program, Step, StepInput
from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.export.exporting import ExportSettings, GraphPlan
from keras_tpu_estimator.export.loading import load_model
from keras_tpu_estimator.export.lowering import lower
from keras_tpu_estimator.export.rebuilding import rebuild
from keras_tpu_estimator.export.served_model_fn import ServedModelFn
from keras_tpu_estimator.export.serving_graph import Model, ServingGraph, build_graph
from keras_tpu_estimator.files.formats import checkpoint_format as formats
from keras_tpu_estimator.front_ends.keras import layer_checks
from keras_tpu_estimator.front_ends.keras.forward_step import trace_forward_step
from keras_tpu_estimator.front_ends.keras.traced_model_fn import TracedModelFn
from keras_tpu_estimator.front_ends.keras.train_step import trace_train_step
from keras_tpu_estimator.front_ends.tables.program import TablesProgram


@runtime_checkable
class OfKerasModel(Protocol):
    """A `model_fn` that only calls one compiled Keras model."""

    @property
    def keras_model(self) -> keras.Model:
        """The model, with the initial values of training."""

    def trained_model(self, values: Mapping[str, TensorLike]) -> keras.Model:
        """Returns a compiled copy of the model with other values by path."""

    def copy_with(self, values: Mapping[str, TensorLike]) -> keras.Model:
        """Returns a copy of the model that is not compiled, with other values."""

    @property
    def inputs(self) -> Mapping[str, keras.KerasTensor] | None:
        """The model's symbolic inputs by name, or `None` if it has none."""

    def predictions(self, model: keras.Model, features: Features) -> PyTree:
        """Returns the predictions of PREDICT, by another model of this kind."""

    def as_outputs(self, predictions: Mapping[str, TensorLike]) -> PyTree:
        """Returns predictions in the structure of the model's outputs."""


class KerasFrontEnd:
    """The front end of Keras code; see `FrontEnd`."""

    checkpoint_format = formats.HDF5
    why_no_tables: str | None = None
    keras_model: OfKerasModel | None = None

    def make_program(
        self,
        call_model_fn: SpecFunction,
        seed: int | None = None,
        options: TraceOptions | None = None,
        cores: Cores = ONE_CORE,
    ) -> Program:
        """Returns the program of a `model_fn`, inside that of embedding tables."""
        program = KerasProgram(call_model_fn, seed, options)
        tables = getattr(call_model_fn, "embeddings", None)
        if tables is None:
            return program
        inside = getattr(call_model_fn, "features_inside", None)
        return TablesProgram(program, tables, cores, seed, inside)

    def source_of(
        self,
        call: Callable[[], Any],
        number: int,
        seed: int | None,
        hooks: Sequence[Hook] = (),
    ) -> BatchSource:
        """Calls an `input_fn`, and makes a source of its result."""
        del seed, hooks
        return source_of_call(call, number)

    def pair_of(self, value: Any) -> tuple[Features, Labels]:
        """Returns the features and the labels of a batch."""
        return batch.pair_of(value)

    def like(
        self, model_fn: Callable[..., Any], function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Returns the function itself, because Keras code needs no mark."""
        del model_fn
        return function

    def graph_builder(
        self, model_fn: BoundModelFn, settings: ExportSettings
    ) -> "KerasGraphs":
        """Returns the builder of the graphs of an export."""
        return KerasGraphs(self, model_fn, settings)


@dataclasses.dataclass(frozen=True)
class KerasGraphs:
    """A builder of graphs around compiled programs; see `GraphBuilder`."""

    front_end: KerasFrontEnd
    model_fn: BoundModelFn
    settings: ExportSettings

    is_tried = True

    def build(self, plan: GraphPlan, checkpoint: str) -> ServingGraph:
        """Builds one graph, as an XLA op or as TensorFlow ops."""
        settings = self.settings

        def model_for(features: PyTree) -> Model:
            served = ServedModelFn(self.model_fn, plan.mode, plan.use_tpu)
            program = self.front_end.make_program(
                served, settings.seed, settings.options
            )
            loaded = load_model(served, program, checkpoint, features)
            is_served = plan.mode == ModeKeys.PREDICT
            if is_served and settings.backend == "tensorflow":
                return rebuild(loaded, settings.options, settings.timeout_secs)
            return lower(loaded)

        return build_graph(plan.receiver_fn, plan.kinds, model_for)


KERAS = KerasFrontEnd()


class KerasProgram:
    """The program of a `model_fn` that JAX traces; `seed` determines initial values and
    random layers.
    """

    def __init__(
        self,
        call_model_fn: SpecFunction,
        seed: int | None = None,
        options: TraceOptions | None = None,
    ):
        self.store = VariableStore(seed)
        self._options = TraceOptions() if options is None else options
        self._call_model_fn = call_model_fn
        self._unchecked_policy = self._options.dtype_policy
        self._steps: dict[Any, Step] = {}

    def step(self, mode: str, example: StepInput) -> Step:
        """Returns the step for inputs of this shape, traced if it is new; a tensor of
        `model_fn` must not have the name of a variable.
        """
        key = (mode, example.key)
        if key not in self._steps:
            announce(f"Calling model_fn for mode {mode!r}")
            self.store.inputs = inputs(
                example.features,
                None if mode == ModeKeys.PREDICT else example.labels,
            )
            call = TracedModelFn(self._call_model_fn, mode, example, self._options)
            trace = trace_train_step if mode == ModeKeys.TRAIN else trace_forward_step
            with initializing(self.store.target):
                step = trace(self.store, call)
            check_apart(call.named, self.store.variables)
            self._check_policy(call.policies)
            self._steps[key] = step
        return self._steps[key]

    def _check_policy(self, policies: set[str]) -> None:
        """Checks the dtype policy against those of layers; once."""
        policy, self._unchecked_policy = self._unchecked_policy, None
        if policy is not None:
            layer_checks.warn_of_unused_policy(policy, policies)
