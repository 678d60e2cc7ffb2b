"""The state of a loop, as hooks, callbacks and the Keras model of a call see it."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import jax
import keras
import numpy as np

from keras_tpu_estimator.api.hooks.callback_hook import with_callbacks
from keras_tpu_estimator.api.hooks.hook_list import HookList
from keras_tpu_estimator.api.hooks.loop_results import LoopResults
from keras_tpu_estimator.api.hooks.session import Session
from keras_tpu_estimator.api.hooks.session_run_hook import Hook
from keras_tpu_estimator.base.common.field_checks import did_you_mean
from keras_tpu_estimator.base.common.ledger import stepping
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.tracing.variable_classes import own_rows
from keras_tpu_estimator.engine.device.run_state import RunState, StepValues
from keras_tpu_estimator.engine.program.additions import (
    CHECKS,
    NO_ADDITIONS,
    StepAdditions,
)
from keras_tpu_estimator.engine.program.steps import (
    LOSS,
    NAMED,
    REPORTS,
    STEP_NUMBERS,
    SUMMARIES,
    Outputs,
)
from keras_tpu_estimator.engine.program.store import EVAL_STEP, GLOBAL_STEP
from keras_tpu_estimator.runs.estimator_context import EstimatorContext


class LoopState:
    """The values that hooks may fetch, which the loop updates.

    Attributes:
        values: The values of the variables. The next part of a loop may have started.
        results: The results up to the last part of which `ran` was called.
        outputs: Other values of the last run for callbacks, by name.
        last_step: The global step to stop at, or `None` if it is unknown.
        loops: The number of loops, or `None` if it is unknown.
        completed_at: The time, by `time.monotonic`, when the last part was complete.
        additions: What the front end adds to the step that made `results.named`.
    """

    additions: StepAdditions = NO_ADDITIONS

    def __init__(
        self,
        values: RunState,
        results: LoopResults,
        steps: int | None = None,
        loops: int | None = None,
    ):
        self.values = values
        self.results = results
        self._newest_losses = StepValues.all_rows(results.losses[-1])
        self._is_complete, self.completed_at = True, time.monotonic()
        self._checks: Outputs = {}
        self.outputs: dict[str, Any] = {}
        self.last_step = None if steps is None else values.step + steps
        self.loops = loops

    def ran(self, losses: StepValues, outputs: Outputs, begins_loop: bool) -> None:
        """Records a started part of a loop, after waiting for the previous one."""
        # The devices must hold the data of few parts.
        self.wait()
        earlier = () if begins_loop else self.results.losses
        numbers = () if begins_loop else self.results.numbers
        if STEP_NUMBERS in outputs:
            numbers = (*numbers, outputs[STEP_NUMBERS])
        self._newest_losses = losses
        self._is_complete = False
        self.note_if_complete()
        self._checks = outputs.get(CHECKS, {})
        self.results = dataclasses.replace(
            self.results,
            step=self.values.step,
            losses=(*earlier, losses),
            numbers=numbers,
            named=outputs[NAMED],
            reports=outputs[REPORTS],
            summaries=outputs[SUMMARIES],
        )

    def fetch(self, name: str) -> Any:
        """Returns a variable, a requested tensor, `"loss"` or `"global_step"`."""
        if name == LOSS:
            return self.results.loss
        if name == GLOBAL_STEP:
            return np.int64(self.results.step)
        for values_by_name in (self.values, self.results.named):
            if name in values_by_name:
                return values_by_name[name]
        raise self._unknown(name, f"{LOSS!r}, {GLOBAL_STEP!r}")

    def note_if_complete(self) -> None:
        """Records the time if the devices have completed the last part.

        It must be called early, because a CPU can run the next part before it returns.
        """
        if self._is_complete:
            return
        rows = self._newest_losses.rows
        if not isinstance(rows, jax.Array) or rows.is_ready():  # type: ignore[attr-defined]
            self._is_complete, self.completed_at = True, time.monotonic()

    def wait(self) -> None:
        """Waits until the devices complete the last part, and checks it."""
        with stepping:
            jax.block_until_ready(self._newest_losses.rows)
        self.note_if_complete()
        if self._checks:
            self.additions.check(self._checks)

    def _unknown(self, name: str, always: str) -> KeyError:
        names = sorted({**self.values, **self.results.named})
        return KeyError(
            f"A fetched name must be {always} or one of {names}. Received: "
            f"{name!r}. Request a tensor of model_fn that kte.identity names, or a "
            "prediction, in `before_run`."
            f"{did_you_mean(name, [n for n in (LOSS, *names) if n != name])}"
        )


class EvaluationState(LoopState):
    """The values that hooks may fetch in `evaluate`, such as the number of batches."""

    batches = 0

    def fetch(self, name: str) -> Any:
        """Returns the value of a name, which may be that of the number of batches."""
        if name == EVAL_STEP and name not in self.results.named:
            return np.int64(self.batches)
        return super().fetch(name)


class PredictionState(LoopState):
    """The values that hooks may fetch in `predict`, which has no loss.

    A prediction precedes a variable of the same name.
    """

    def fetch(self, name: str) -> Any:
        """Returns the value of a name, or raises `KeyError`."""
        # Hooks count by the global step, even if a prediction has its name.
        if name in self.results.named and name != GLOBAL_STEP:
            return self.results.named[name]
        if name == LOSS:
            raise self._unknown(name, repr(GLOBAL_STEP))
        return super().fetch(name)


class LiveModel:
    """The Keras model, which has the loop's values inside its `with` block."""

    def __init__(self, context: EstimatorContext, loop_state: LoopState):
        self.mode = loop_state.values.mode
        self._context = context
        self._values = context.runtime.values
        self._loop_state = loop_state
        self._blocks: list[contextlib.AbstractContextManager[None]] = []

    @property
    def model(self) -> keras.Model:
        """The model."""
        return self._context.model

    @property
    def graph(self) -> Any:
        """The object of the front end for hooks, of the last run, or `None`."""
        return self._loop_state.additions.graph

    @property
    def last_step(self) -> int | None:
        """The global step to stop at, or `None` if it is unknown."""
        return self._loop_state.last_step

    @property
    def loops(self) -> int | None:
        """The number of loops, or `None` if it is unknown."""
        return self._loop_state.loops

    def fetch(self, name: str) -> Any:
        """Returns the value of `LoopState.fetch`, with the user's number of rows."""
        value = self._loop_state.fetch(name)
        rows = self._context.runtime.program.store.rows
        # Another value may have the name of a variable.
        if name in rows and value is self._loop_state.values.get(name):
            return own_rows(value, rows[name])
        return value

    def logs_of_run(self) -> Callable[[], dict[str, Any]]:
        """Returns a function that waits for the last run and returns its logs."""
        outputs = dict(self._loop_state.outputs)
        if self.mode == ModeKeys.PREDICT:
            return lambda: outputs
        # Callbacks read the logs of an epoch at its end.
        results = self._loop_state.results.without_tensors()
        return lambda: {"loss": results.mean_loss} | outputs

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
    """Returns the hooks and Keras callbacks of one call, with a session."""
    live = LiveModel(context, loop_state)
    session = Session(live.fetch, live, loop_state.wait, graph, loop_state)
    return HookList(with_callbacks(hooks), session)
