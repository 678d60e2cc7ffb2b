"""Front ends: ways to write a `model_fn`. A new one is a subclass of `FrontEnd`.

A front end makes a `Program` of a `model_fn`: variables by path, and a pure function
of a step for each mode and batch shape. A `model_fn` names its front end by an
attribute `front_end`.
"""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import keras

from keras_tpu_estimator.api.hooks.session_run_hook import Hook
from keras_tpu_estimator.base.common import registry
from keras_tpu_estimator.base.common.params import layers_of
from keras_tpu_estimator.base.common.types import Features, Labels, PyTree, TensorLike
from keras_tpu_estimator.base.mesh.cores import ONE_CORE, Cores
from keras_tpu_estimator.engine.inputs import batch
from keras_tpu_estimator.engine.inputs.batch_source import BatchSource
from keras_tpu_estimator.engine.inputs.request import source_of_call
from keras_tpu_estimator.engine.program.bound_model_fn import (
    BoundModelFn,
    SpecFunction,
    TraceOptions,
)
from keras_tpu_estimator.engine.program.steps import Program
from keras_tpu_estimator.files.formats import registry as formats


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


class FrontEnd(abc.ABC):
    """A way to write a `model_fn`. A subclass must implement `make_program`.

    The other methods and attributes have defaults: checkpoints in HDF5, inputs as in
    Keras code, and exports of the program's step in PREDICT.

    Attributes:
        checkpoint_format: The name of its default checkpoint format.
        why_no_tables: The reason why it does not support
            `embedding_config_spec`, and the alternative; `None` if it does.
        keras_model: The only Keras model that `model_fn` calls, or `None`.
        has_original_summaries: Whether event files have only summaries of the
            original, so that they can be compared.
    """

    checkpoint_format: str = formats.HDF5
    why_no_tables: str | None = (
        "With `embedding_config_spec`, `model_fn` must be written with Keras or JAX. "
        "Received one with another front end. Omit `embedding_config_spec`."
    )
    keras_model: OfKerasModel | None = None
    has_original_summaries: bool = False

    @abc.abstractmethod
    def make_program(
        self,
        call_model_fn: SpecFunction,
        seed: int | None = None,
        options: TraceOptions | None = None,
        cores: Cores = ONE_CORE,
    ) -> Program:
        """Makes the program of a `model_fn`.

        Args:
            call_model_fn: Called with features, labels, mode and the additional
                `params`; returns a spec. Its attribute `embeddings`, if it has
                one, contains the embedding tables, and `features_inside`
                locates the features, as in `TablesProgram`.
            seed: The seed of initial values and random layers. Defaults to
                `None`.
            options: The options of its trace. Defaults to `TraceOptions()`.
            cores: The devices that embedding tables are sharded over. Defaults
                to one device.
        """

    def source_of(
        self,
        call: Callable[[], Any],
        number: int,
        seed: int | None,
        hooks: Sequence[Hook] = (),
    ) -> BatchSource:
        """Calls an `input_fn`, and makes a source of its result.

        Args:
            call: Calls it.
            number: The number of this call among those of a step.
            seed: The seed of the program, or `None`.
            hooks: The hooks of the call of the estimator, which may initialize
                the iterators of a graph. Defaults to none.
        """
        del seed, hooks
        return source_of_call(call, number)

    def pair_of(self, value: Any) -> tuple[Features, Labels]:
        """Returns the features and the labels of a batch.

        Args:
            value: A batch of `input_fn` or of a Keras data set.

        Raises:
            ValueError: It is neither a pair nor only features.
        """
        return batch.pair_of(value)

    def like(
        self, model_fn: Callable[..., Any], function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Marks a function as a `model_fn` of the same kind.

        Args:
            model_fn: The user's function.
            function: The other function, which may call it.
        """
        del model_fn
        marked: Any = function
        marked.front_end = self
        return function

    def graph_builder(self, model_fn: BoundModelFn, settings: Any) -> Any:
        """Returns a `GraphBuilder` for exports; `None` exports the program itself.

        Args:
            model_fn: The user's function.
            settings: The `ExportSettings` of the estimator.
        """
        del model_fn, settings


def front_end_of(model_fn: object) -> FrontEnd:
    """Returns the front end of a `model_fn` or a wrapper of it: its attribute
    `front_end`, or Keras's.
    """
    marks = (getattr(layer, "front_end", None) for layer in layers_of(model_fn))
    mark = next(filter(None, marks), None)
    front_end: FrontEnd = registry.part("front_end") if mark is None else mark
    return front_end
