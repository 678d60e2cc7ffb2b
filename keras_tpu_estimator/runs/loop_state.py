"""The state of a loop, as hooks, callbacks and the Keras model of a call see it."""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import jax
import keras
import numpy as np

from keras_tpu_estimator.api.hooks.callback_hook import with_callbacks
from keras_tpu_estimator.api.hooks.hook_list import HookList
from keras_tpu_estimator.api.hooks.session import Session
from keras_tpu_estimator.api.hooks.session_run_hook import Hook
from keras_tpu_estimator.base.common.field_checks import did_you_mean
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.tracing.variable_classes import own_rows
from keras_tpu_estimator.engine.device.run_state import RunState, StepValues
from keras_tpu_estimator.engine.program.additions import (
    CHECKS,
    NO_ADDITIONS,
    StepAdditions,
)
from keras_tpu_estimator.engine.program.steps import (
    NAMED,
    REPORTS,
    STEP_NUMBERS,
    SUMMARIES,
    Outputs,
)
from keras_tpu_estimator.engine.program.store import EVAL_STEP, GLOBAL_STEP
from keras_tpu_estimator.files.summary.collecting import Collected
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.outfeed import TrainingMetrics

LOSS = "loss"


class LoopState:
    """The values that hooks may fetch, which the loop updates.

    Attributes:
        step: The global step after the last part of which `ran` was called. The
            next part may have started.
        losses: The losses of the last loop, as `DeviceLoop.run` returns them for
            each part.
        reports: Numbers of the last step to report, by name.
        outputs: Other values of the last run for callbacks, by name.
        last_step: The global step to stop at, or `None` if it is unknown.
        made_at: The time, by `time.monotonic`, when the last part was complete.
        additions: What the front end adds to the step that made `fetched`.
    """

    additions: StepAdditions = NO_ADDITIONS

    def __init__(
        self,
        values: RunState,
        steps: int | None = None,
        loops: int | None = None,
    ):
        self.values = values
        self.step = values.step
        self.losses = [StepValues.whole(np.full(1, np.nan, "float32"))]
        self._newest_losses = self.losses[0]
        self._is_made, self.made_at = True, time.monotonic()
        # The global step of each loss, if the program assigns it.
        self._numbers: list[StepValues] = []
        self._checks: Outputs = {}
        self._begins_loop = True
        self.fetched: Outputs = {}
        self.reports: Outputs = {}
        self.summaries: Sequence[Collected] = ()
        self.outputs: dict[str, Any] = {}
        self.last_step = None if steps is None else self.step + steps
        self.loops = loops

    def start_loop(self) -> None:
        """Marks the next part as the first one of a loop."""
        self._begins_loop = True

    def ran(self, losses: StepValues, outputs: Outputs) -> None:
        """Records a started part of a loop, after waiting for the previous one."""
        # The devices must hold the data of few parts.
        self.wait()
        self.step = self.values.step
        if self._begins_loop:
            self._begins_loop, self.losses, self._numbers = False, [], []
        self._newest_losses = losses
        self._is_made = False
        self.note_if_made()
        self.losses.append(losses)
        if STEP_NUMBERS in outputs:
            self._numbers.append(outputs[STEP_NUMBERS])
        self._checks = outputs.get(CHECKS, {})
        self.fetched = outputs[NAMED]
        self.reports = outputs[REPORTS]
        self.summaries = outputs[SUMMARIES]

    def fetch(self, name: str) -> Any:
        """Returns a variable, a requested tensor, `"loss"` or `"global_step"`."""
        if name == LOSS:
            return self.loss(self.losses)
        if name == GLOBAL_STEP:
            return np.int64(self.step)
        for known in (self.values, self.fetched):
            if name in known:
                return known[name]
        raise self._unknown(name, f"{LOSS!r}, {GLOBAL_STEP!r}")

    def loss(self, losses: Sequence[StepValues]) -> Any:
        """Returns `"loss"` after a run with these losses: the mean so far."""
        return np.asarray(losses[-1], "float32")[-1]

    def mean_loss(self, losses: Sequence[StepValues]) -> float:
        """Returns the mean over the examples, batches or steps of a run."""
        return float(self.loss(losses))

    def note_if_made(self) -> None:
        """Records the time if the devices have completed the last part.

        It must be called early, because a CPU can run the next part before it returns.
        """
        rows = self._newest_losses.rows
        is_made = not isinstance(rows, jax.Array) or rows.is_ready()  # type: ignore[attr-defined]
        if is_made and not self._is_made:
            self._is_made, self.made_at = True, time.monotonic()

    def wait(self) -> None:
        """Waits until the devices complete the last part, and checks it."""
        jax.block_until_ready(self._newest_losses.rows)
        self.note_if_made()
        self.additions.check(self._checks)

    def _unknown(self, name: str, always: str) -> KeyError:
        names = sorted({**self.values, **self.fetched})
        return KeyError(
            f"A fetched name must be {always} or one of {names}. Received: "
            f"{name!r}. Request a tensor of model_fn that kte.identity names, or a "
            "prediction, in `before_run`."
            f"{did_you_mean(name, [n for n in (LOSS, *names) if n != name])}"
        )

    @property
    def losses_of_steps(self) -> np.ndarray:
        """The losses of the last loop as one array."""
        return np.concatenate([np.asarray(each, "float32") for each in self.losses])

    def first_nan_step(self) -> int | None:
        """Returns the first step of the last loop whose loss is NaN, or `None`."""
        losses = self.losses_of_steps
        bad = np.flatnonzero(np.isnan(losses))
        if not len(bad):
            return None
        if self._numbers:
            return int(np.concatenate(self._numbers)[bad[0]])
        return self.step - len(losses) + 1 + int(bad[0])


class TrainingState(LoopState):
    """The values that hooks may fetch in `train`, with one loss for each step.

    If `is_mean` is set, `"loss"` is the mean over a loop instead of the last step's
    loss. In both cases it is NaN if any step's loss is NaN.
    """

    def __init__(
        self,
        values: RunState,
        steps: int | None,
        loops: int | None,
        is_mean: bool,
        metrics: TrainingMetrics,
    ):
        super().__init__(values, steps, loops)
        self.metrics = metrics
        self._is_mean = is_mean

    def loss(self, losses: Sequence[StepValues]) -> Any:
        """Returns `"loss"` after a run."""
        mean = self.mean_loss(losses)
        if self._is_mean or np.isnan(mean):
            return np.float32(mean)
        return super().loss(losses)

    def mean_loss(self, losses: Sequence[StepValues]) -> float:
        """Returns the mean over the steps of a run."""
        of_steps = [np.asarray(each, "float32") for each in losses]
        return float(np.concatenate(of_steps).mean())

    @property
    def last_loss(self) -> Any:
        """The loss of the last step."""
        return super().loss(self.losses)


class EvaluationState(LoopState):
    """The values that hooks may fetch in `evaluate`, such as the number of batches."""

    batches = 0

    def fetch(self, name: str) -> Any:
        """Returns the value of a name, which may be that of the number of batches."""
        if name == EVAL_STEP and name not in self.fetched:
            return np.int64(self.batches)
        return super().fetch(name)


class PredictionState(LoopState):
    """The values that hooks may fetch in `predict`, which has no loss.

    A prediction precedes a variable of the same name.
    """

    def fetch(self, name: str) -> Any:
        """Returns the value of a name, or raises `KeyError`."""
        # Hooks count by the global step, even if a prediction has its name.
        if name in self.fetched and name != GLOBAL_STEP:
            return self.fetched[name]
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
    def step(self) -> int:
        """The global step."""
        return self._loop_state.step

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
    """Returns the hooks and Keras callbacks of one call, with a session."""
    live = LiveModel(context, loop_state)
    session = Session(live.fetch, live, loop_state.wait, graph)
    return HookList(with_callbacks(hooks), session)
