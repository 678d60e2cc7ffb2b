"""The additions of a front end to its steps, which the core treats alike."""

import types
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.common.user_code import SourceLine
from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.files.directory.retention import Retention

# The scope of operations in XLA's names whose lines `StepAdditions.line_of` knows.
FRONT_END_SCOPE = "front_end_step"
# The output of a step with flags that `StepAdditions.check` receives on the host.
CHECKS = "checks"


class StepAdditions:
    """The slot of a step for its front end, which overrides what it needs.

    Attributes:
        counts_once: Whether each step of TRAIN increments the global step by
            one. Otherwise the global step is the value that the step assigns.
        weighs_examples: Whether the loss of EVAL is the mean over examples.
            Otherwise it is the mean over batches of any size.
        retention: The checkpoints to keep, or `None` for those of `RunConfig`.
        saved_objects: The object graph of TensorFlow checkpoints, or `None`.
        collections: The names of variables by the graph's collections that contain
            them, for TensorFlow checkpoints.
        graph: The object that the front end's own hooks find as `session.graph`,
            or `None`.
    """

    counts_once: bool = True
    weighs_examples: bool = True
    retention: Retention | None = None
    saved_objects: bytes | None = None
    collections: Mapping[str, Sequence[str]] = types.MappingProxyType({})
    graph: Any = None

    def enter_new(self, store: VariableStore) -> bool:
        """Enters variables that hooks have made into the program's store, and returns
        whether there are any.
        """
        del store
        return False

    def batch_step(self, operations: Sequence[str], store: VariableStore) -> Any:
        """Returns the `Step` of operations that a hook runs on a separate batch."""
        del store
        raise TypeError(
            "Operations must belong to a graph. Received, for a model_fn without one: "
            f"{', '.join(operations)}. Fetch values by name."
        )

    def check(self, flags: Mapping[str, jax.Array]) -> None:
        """Raises an error if finished steps must not be used.

        Args:
            flags: Their output `CHECKS`, or an empty dict.
        """

    def as_received(self, predictions: PyTree) -> PyTree:
        """Returns predictions as the user receives them, from NumPy arrays."""
        return predictions

    def line_of(self, operation: str) -> SourceLine | None:
        """Returns the user's line that made an operation of `FRONT_END_SCOPE`."""
        del operation
        return None


NO_ADDITIONS = StepAdditions()
