"""What a front end is, and which one a `model_fn` is written for."""

from collections.abc import Callable
from typing import Any
from typing import Protocol

from keras_tpu_estimator.engine.inputs.batch_source import BatchSource
from keras_tpu_estimator.engine.program.bound_model_fn import BoundModelFn
from keras_tpu_estimator.engine.program.bound_model_fn import SpecFunction
from keras_tpu_estimator.engine.program.options import TraceOptions
from keras_tpu_estimator.engine.program.program import Program
from keras_tpu_estimator.export.exporting import ExportSettings
from keras_tpu_estimator.export.exporting import GraphBuilder
from keras_tpu_estimator.front_ends.keras.front_end import KERAS
from keras_tpu_estimator.front_ends.keras.of_keras_model import OfKerasModel
from keras_tpu_estimator.ground.base.signatures import layers_of
from keras_tpu_estimator.ground.base.types import Features
from keras_tpu_estimator.ground.base.types import Labels
from keras_tpu_estimator.ground.mesh.cores import ONE_CORE
from keras_tpu_estimator.ground.mesh.cores import Cores


class FrontEnd(Protocol):
    """One way to write a `model_fn`, and all that depends on it.

    Attributes:
        checkpoint_format: The name of the format of its checkpoints, unless
            `RunConfig` sets one.
        why_no_tables: Why it takes no `embedding_config_spec`, and what to
            write in its place; `None` where it does.
        keras_model: The only Keras model that `model_fn` calls, or `None`.
    """

    checkpoint_format: str
    why_no_tables: str | None

    @property
    def keras_model(self) -> OfKerasModel | None:
        """See above."""

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
                `params`; returns a spec. Its `embeddings`, if it has some, are
                the tables, and its `features_inside` says where the features
                are, as in `TablesProgram`.
            seed: Makes initial values and random layers repeatable. Defaults
                to `None`.
            options: How it is traced. Defaults to `TraceOptions()`.
            cores: The cores that tables lie over. Defaults to one core.
        """

    def source_of(
        self, call: Callable[[], Any], number: int, seed: int | None
    ) -> BatchSource:
        """Calls an `input_fn`, and makes a source of what it returned.

        Args:
            call: Calls it.
            number: The number of this call among those that feed a step.
            seed: The seed of the program, or `None`.
        """

    def pair_of(self, value: Any) -> tuple[Features, Labels]:
        """The features and the labels of a batch.

        Args:
            value: What `input_fn`, or a data set of Keras, gives as one.

        Raises:
            ValueError: It is neither a pair nor features alone.
        """

    def like(
        self, model_fn: Callable[..., Any], function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Another `model_fn` of the same kind.

        Args:
            model_fn: What the user wrote.
            function: The other, which may call it.
        """

    def graph_builder(
        self, model_fn: BoundModelFn, settings: ExportSettings
    ) -> GraphBuilder:
        """What builds the graphs of an export.

        Args:
            model_fn: The user's function.
            settings: What the estimator says about its exports.
        """


def front_end_of(model_fn: object) -> FrontEnd:
    """The front end that a `model_fn` is written for.

    Args:
        model_fn: What the user wrote. One for another front end than Keras's
            has an attribute `front_end`, which marking it added. So does what
            wraps such a function.

    Example:

    >>> front_end_of(lambda features, labels, mode, params: ...).why_no_tables
    """
    marks = (getattr(each, "front_end", None) for each in layers_of(model_fn))
    front_end: FrontEnd = next((mark for mark in marks if mark), KERAS)
    return front_end
