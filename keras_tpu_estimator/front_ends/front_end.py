"""The protocol of front ends, and the front end of a `model_fn`."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from keras_tpu_estimator.api.hooks.session_run_hook import Hook
from keras_tpu_estimator.base.common.params import layers_of
from keras_tpu_estimator.base.common.types import Features, Labels
from keras_tpu_estimator.base.mesh.cores import ONE_CORE, Cores
from keras_tpu_estimator.engine.inputs.batch_source import BatchSource
from keras_tpu_estimator.engine.program.bound_model_fn import (
    BoundModelFn,
    SpecFunction,
    TraceOptions,
)
from keras_tpu_estimator.engine.program.steps import Program
from keras_tpu_estimator.export.exporting import ExportSettings, GraphBuilder
from keras_tpu_estimator.front_ends.keras.front_end import KERAS, OfKerasModel


class FrontEnd(Protocol):
    """A way to write a `model_fn`, and everything that depends on it.

    Attributes:
        checkpoint_format: The name of its default checkpoint format.
        why_no_tables: The reason why it does not support
            `embedding_config_spec`, and the alternative; `None` if it does.
        keras_model: The only Keras model that `model_fn` calls, or `None`.
    """

    checkpoint_format: str
    why_no_tables: str | None

    @property
    def keras_model(self) -> OfKerasModel | None:
        """See the attribute of that name."""

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

    def pair_of(self, value: Any) -> tuple[Features, Labels]:
        """Returns the features and the labels of a batch.

        Args:
            value: A batch of `input_fn` or of a Keras data set.

        Raises:
            ValueError: It is neither a pair nor only features.
        """

    def like(
        self, model_fn: Callable[..., Any], function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Marks a function as a `model_fn` of the same kind.

        Args:
            model_fn: The user's function.
            function: The other function, which may call it.
        """

    def graph_builder(
        self, model_fn: BoundModelFn, settings: ExportSettings
    ) -> GraphBuilder:
        """Returns the builder of the graphs of an export.

        Args:
            model_fn: The user's function.
            settings: The export settings of the estimator.
        """


def front_end_of(model_fn: object) -> FrontEnd:
    """Returns the front end of a `model_fn` or a wrapper of it: its attribute
    `front_end`, or Keras's.
    """
    marks = (getattr(each, "front_end", None) for each in layers_of(model_fn))
    front_end: FrontEnd = next((mark for mark in marks if mark), KERAS)
    return front_end
