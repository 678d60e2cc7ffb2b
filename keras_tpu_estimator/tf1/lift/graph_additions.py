"""The additions of a TF1 graph to its steps."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.common.user_code import SourceLine
from keras_tpu_estimator.engine.program.additions import StepAdditions
from keras_tpu_estimator.engine.program.store import VariableStore
from keras_tpu_estimator.files.directory.retention import Retention
from keras_tpu_estimator.tf1.host.graph_session import HookedGraph
from keras_tpu_estimator.tf1.lift.truncation import check_not_truncated


@dataclasses.dataclass(frozen=True, eq=False)
class GraphAdditions(StepAdditions):
    """The additions of a graph to a step: its count of steps, hooks and wide integers.

    Attributes:
        graph: The graph, with the operations of its hooks.
        dtypes: A pytree like the output `predictions` with the dtypes that the user
            receives, or `None` for those of the devices.
        line_in_graph: Returns the user's line that made an operation.
    """

    graph: HookedGraph = dataclasses.field()
    counts_once: bool = dataclasses.field()
    retention: Retention | None = dataclasses.field()
    saved_objects: bytes | None = dataclasses.field()
    collections: Mapping[str, Sequence[str]] = dataclasses.field()
    dtypes: PyTree
    line_in_graph: Callable[[str], SourceLine | None]

    weighs_examples = False

    def enter_new(self, store: VariableStore) -> bool:
        """Enters variables that hooks have made, and returns whether there are any."""
        return self.graph.enter_new(store)

    def batch_step(self, operations: Sequence[str], store: VariableStore) -> Any:
        """Returns the `Step` of operations that a hook runs on a separate batch."""
        return self.graph.batch_step(operations, store)

    def check(self, flags: Mapping[str, jax.Array]) -> None:
        """Raises an error if an integer did not fit 32 bits."""
        check_not_truncated(flags)

    def as_received(self, predictions: PyTree) -> PyTree:
        """Returns predictions with the dtypes of the graph."""
        if self.dtypes is None:
            return predictions
        return jax.tree.map(
            lambda array, dtype: array.astype(dtype, copy=False),
            predictions,
            self.dtypes,
        )

    def line_of(self, operation: str) -> SourceLine | None:
        """Returns the user's line that made an operation of the graph."""
        return self.line_in_graph(operation)
