"""The Keras model and the hooks of a call, with the current values of its loop."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from keras_tpu_estimator.api.hooks.callback_hook import with_callbacks
from keras_tpu_estimator.api.hooks.hook_list import HookList
from keras_tpu_estimator.api.hooks.session import Session
from keras_tpu_estimator.api.hooks.session_run_hook import Hook
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.tracing.variable_classes import own_rows
from keras_tpu_estimator.front_ends.keras_model.estimator_model import EstimatorModel
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.loop_state import LoopState


class LiveModel:
    """The Keras model, which has the loop's values inside its `with` block."""

    def __init__(self, context: EstimatorContext, loop_state: LoopState):
        self.mode = loop_state.values.mode
        self._context = context
        self._values = context.runtime.values
        self._loop_state = loop_state
        self._blocks: list[contextlib.AbstractContextManager[None]] = []

    @property
    def model(self) -> EstimatorModel:
        """The model."""
        return self._context.model

    @property
    def step(self) -> int:
        """The global step."""
        return self._loop_state.step

    @property
    def last_step(self) -> int | None:
        """The global step to stop at, or `None` if it is unknown."""
        return self._loop_state.last_step

    @property
    def loops(self) -> int | None:
        """The number of loops, or `None` if it is unknown."""
        return self._loop_state.loops

    def fetch(self, name: str) -> Any:
        """Returns the value of a name, with the user's number of rows.

        Args:
            name: As in `LoopState.fetch`.

        Raises:
            KeyError: The name does not exist.
        """
        value = self._loop_state.fetch(name)
        rows = self._context.runtime.program.store.rows
        # Another value may have the name of a variable.
        is_variable = value is self._loop_state.values.get(name)
        if is_variable and name in rows:
            return own_rows(value, rows[name])
        return value

    def logs_of_run(self) -> Callable[[], dict[str, Any]]:
        """Returns a function that waits for the last run and returns its logs."""
        outputs = dict(self._loop_state.outputs)
        if self.mode == ModeKeys.PREDICT:
            return lambda: outputs
        state, losses = self._loop_state, [*self._loop_state.losses]
        return lambda: {"loss": state.mean_loss(losses)} | outputs

    def assign(self, assigned: Mapping[str, Any]) -> None:
        """Assigns values to variables for the next run."""
        self._values.edit(self._loop_state.values, assigned)

    def without_edits(self) -> contextlib.AbstractContextManager[None]:
        """Discards the values that user code assigns in the `with` block."""
        return self._loop_state.values.without_edits()

    def __enter__(self) -> Self:
        block = self._values.shown.visible(self._loop_state.values)
        block.__enter__()
        self._blocks.append(block)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._blocks.pop().__exit__(*exception)


def hooks_around(
    hooks: Iterable[Hook],
    context: EstimatorContext,
    loop_state: LoopState,
    graph: Any = None,
) -> HookList:
    """Returns the hooks of one call, with a session.

    Args:
        hooks: Hooks and Keras callbacks.
        graph: As in `Step`.
    """
    live = LiveModel(context, loop_state)
    session = Session(live.fetch, live, loop_state.wait, graph)
    return HookList(with_callbacks(hooks), session)
