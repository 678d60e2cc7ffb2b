"""Where a loop stands, as hooks and callbacks see it."""

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.engine.device.run_state import RunState
from keras_tpu_estimator.engine.device.step_values import StepValues
from keras_tpu_estimator.engine.program.outputs import check_not_truncated
from keras_tpu_estimator.engine.program.steps import (
    CUT,
    NAMED,
    REPORTS,
    STEP_NUMBERS,
    SUMMARIES,
    Outputs,
)
from keras_tpu_estimator.engine.program.store import EVAL_STEP, GLOBAL_STEP
from keras_tpu_estimator.files.summary.collecting import Collected
from keras_tpu_estimator.ground.base.suggestions import did_you_mean
from keras_tpu_estimator.runs.training_metrics import TrainingMetrics

LOSS = "loss"


class LoopState:
    """What hooks may fetch from a loop, kept up to date by it.

    Args:
        steps: How many steps there will be, or `None` if that is open.
        loops: The same of loops.

    Attributes:
        step: The global step that values had after the part that was told of
            last; the next one may be on its way.
        losses: Those of the last loop, as `DeviceLoop.run` gives them for each
            of its parts.
        fetched: The tensors that hooks asked for, by name.
        reports: Numbers of the last step to report, by name.
        summaries: What `model_fn` recorded in the last step, on the devices.
        outputs: What else the last run has for callbacks, by name.
        last_step: The global step to stop at, or `None` if that is open.
        loops: How many loops there will be, or `None` if that is open.
        made_at: When the last part was complete, by `time.monotonic`.
    """

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
        # The global step of each loss, unless each step counts once.
        self._numbers: list[StepValues] = []
        self._cut: Outputs = {}
        self._begins_loop = True
        self.fetched: Outputs = {}
        self.reports: Outputs = {}
        self.summaries: Sequence[Collected] = ()
        self.outputs: dict[str, Any] = {}
        self.last_step = None if steps is None else self.step + steps
        self.loops = loops

    def start_loop(self) -> None:
        """Tells that the next part is the first one of a loop."""
        self._begins_loop = True

    def ran(self, losses: StepValues, outputs: Outputs) -> None:
        """Tells of a part of a loop that is on its way, values with it.

        Waits for the part before it.

        Args:
            losses: Those of its steps.
            outputs: Its other outputs.
        """
        # The devices hold the data of few parts, however fast they are fed.
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
        self._cut = outputs.get(CUT, {})
        self.fetched = outputs[NAMED]
        self.reports = outputs[REPORTS]
        self.summaries = outputs[SUMMARIES]

    def fetch(self, name: str) -> Any:
        """The value of a name.

        Args:
            name: `"global_step"`, `"loss"`, the path of a variable, or the
                name of a tensor that was asked for before the run.

        Raises:
            KeyError: There is nothing of that name.
        """
        if name == LOSS:
            return self.loss(self.losses)
        if name == GLOBAL_STEP:
            return np.int64(self.step)
        for known in (self.values, self.fetched):
            if name in known:
                return known[name]
        raise self._unknown(name, f"{LOSS!r}, {GLOBAL_STEP!r}")

    def loss(self, losses: Sequence[StepValues]) -> Any:
        """What `"loss"` is after a run: the mean over examples so far.

        Args:
            losses: `losses`, as they were after that run.
        """
        return np.asarray(losses[-1], "float32")[-1]

    def mean_loss(self, losses: Sequence[StepValues]) -> float:
        """The mean over the examples, or the steps, of a run.

        Args:
            losses: As in `loss`.
        """
        return float(self.loss(losses))

    def note_if_made(self) -> None:
        """Notes the time, if the devices have just made the last part.

        The host may look again much later: a CPU can run the next part before
        it returns.
        """
        rows = self._newest_losses.rows
        is_made = not isinstance(rows, jax.Array) or rows.is_ready()  # type: ignore[attr-defined]
        if is_made and not self._is_made:
            self._is_made, self.made_at = True, time.monotonic()

    def wait(self) -> None:
        """Waits until the devices have made the last part of a loop.

        Raises:
            CutIntegersError: Its steps have made integers that do not fit.
        """
        jax.block_until_ready(self._newest_losses.rows)
        self.note_if_made()
        check_not_truncated(self._cut)

    def _unknown(self, name: str, always: str) -> KeyError:
        names = sorted({**self.values, **self.fetched})
        return KeyError(
            f"Nothing to fetch is called {name!r}. Expected {always} or one of "
            f"{names}; a tensor of model_fn that is named by kte.identity, or "
            "a prediction, has to be asked for in `before_run`."
            f"{did_you_mean(name, [LOSS, GLOBAL_STEP, *names])}"
        )

    @property
    def losses_of_steps(self) -> np.ndarray:
        """The losses of the last loop as one array."""
        return np.concatenate([np.asarray(each, "float32") for each in self.losses])

    def first_nan_step(self) -> int | None:
        """The first step of the last loop whose loss is not a number."""
        losses = self.losses_of_steps
        bad = np.flatnonzero(np.isnan(losses))
        if not len(bad):
            return None
        if self._numbers:
            return int(np.concatenate(self._numbers)[bad[0]])
        return self.step - len(losses) + 1 + int(bad[0])


class TrainingState(LoopState):
    """What hooks may fetch in `train`, where losses are those of steps.

    Args:
        values: As in `LoopState`.
        steps: As in `LoopState`.
        loops: As in `LoopState`.
        is_mean: Whether `"loss"` is the mean over a loop, rather than that of
            its last step. It is NaN in either case if that of any step is.
        metrics: What training counts.
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
        """What `"loss"` is after a run."""
        mean = self.mean_loss(losses)
        if self._is_mean or np.isnan(mean):
            return np.float32(mean)
        return super().loss(losses)

    def mean_loss(self, losses: Sequence[StepValues]) -> float:
        """The mean over the steps of a run, wherever it ended."""
        of_steps = [np.asarray(each, "float32") for each in losses]
        return float(np.concatenate(of_steps).mean())

    @property
    def last_loss(self) -> Any:
        """The loss of the last step."""
        return super().loss(self.losses)


class EvaluationState(LoopState):
    """The values that hooks may fetch in `evaluate`.

    Attributes:
        batches: How many batches were evaluated.
    """

    batches = 0

    def fetch(self, name: str) -> Any:
        """The value of a name.

        Raises:
            KeyError: There is nothing of that name.
        """
        if name == EVAL_STEP and name not in self.fetched:
            return np.int64(self.batches)
        return super().fetch(name)


class PredictionState(LoopState):
    """What hooks may fetch in `predict`, where there is no loss.

    A prediction comes before a variable of the same name.
    """

    def fetch(self, name: str) -> Any:
        """The value of a name.

        Raises:
            KeyError: There is nothing of that name.
        """
        # Hooks count by the global step, whatever is predicted.
        if name in self.fetched and name != GLOBAL_STEP:
            return self.fetched[name]
        if name == LOSS:
            raise self._unknown(name, repr(GLOBAL_STEP))
        return super().fetch(name)
