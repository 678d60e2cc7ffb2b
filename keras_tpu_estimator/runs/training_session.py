"""The session of hooks in `train`: saving, evaluating, and agreeing with hosts."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from keras_tpu_estimator.api.hooks.session import MetricCounts, Session, T
from keras_tpu_estimator.api.hooks.session_run_hook import Hook
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import InputFn, PathLike
from keras_tpu_estimator.base.hosts.host_exchange import HostExchange
from keras_tpu_estimator.engine.device.run_state import RunState, Version
from keras_tpu_estimator.engine.program.steps import Step
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.evaluation import Evaluation
from keras_tpu_estimator.runs.live_model import LiveModel
from keras_tpu_estimator.runs.loop_state import TrainingState
from keras_tpu_estimator.runs.saver import Saver


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """The evaluations of a training's values between two loops.

    Attributes:
        estimator: The training estimator, the only one that may evaluate them.
        evaluation: Returns the `Evaluation` for the arguments of `evaluate`.
        validation: The evaluation at the end of each epoch, or `None`.
    """

    estimator: Any
    evaluation: Callable[..., Evaluation]
    validation: Evaluation | None


class TrainingSession(Session):
    """A session whose values can be saved and evaluated.

    Args:
        is_interrupted: Whether a signal has asked the process to stop.
    """

    def __init__(
        self,
        context: EstimatorContext,
        loop_state: TrainingState,
        step: Step,
        saver: Saver,
        evaluator: Evaluator,
        is_interrupted: Callable[[], bool],
        call: HostExchange,
    ):
        live = LiveModel(context, loop_state)
        super().__init__(live.fetch, live, loop_state.wait, step.graph)
        self._runtime = context.runtime
        self._loop_state = loop_state
        self._step = step
        self._saver = saver
        self._evaluator = evaluator
        self._is_interrupted = is_interrupted
        self._call = call
        # The names of actions that are due by this host's clock, and of those
        # that were due on any host when hosts last agreed.
        self.due_here: set[str] = set()
        self.due_anywhere: frozenset[str] = frozenset()
        self._validated: dict[Version, dict[str, Any]] = {}

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal has asked the process to stop."""
        return self._is_interrupted()

    @property
    def last_step(self) -> int | None:
        """The global step to stop at, or `None` if it is unknown."""
        return self._loop_state.last_step

    def seconds_since_run(self) -> float:
        """Waits for the last run, and returns the seconds since it was complete."""
        self._loop_state.wait()
        return time.monotonic() - self._loop_state.made_at

    def is_so_anywhere(self, is_so: bool) -> bool:
        """Returns whether a condition is true on any host. All hosts must call this."""
        return self._call.any(is_so, "session.is_so_anywhere")

    def is_due_anywhere(self, name: str, is_due: bool) -> bool:
        """Returns whether an action is due here, or was anywhere after the last run."""
        if not self._call.is_with_others:
            return is_due
        if name in self.due_anywhere:
            return True
        if is_due:
            self.due_here.add(name)
        return False

    def by_chief(self, action: Callable[[], T]) -> T:
        """Runs an action only on the chief, while the other hosts wait."""
        return self._call.by_chief(action, "session.by_chief")

    def saved_step(self, directory: PathLike) -> int | None:
        """Returns the step of this session's last checkpoint in a directory."""
        return self._saver.saved_step(directory)

    def save_checkpoint(
        self,
        directory: PathLike,
        basename: str = "model.ckpt",
        wait: bool = True,
    ) -> None:
        """Writes the current values into a checkpoint."""
        # All hosts save, after comparing assigned values.
        self._call.barrier("session.save_checkpoint")
        self._saver.save(directory, basename)
        if wait:
            self._saver.wait()

    def whence_nan(self) -> str:
        """Returns the known facts about the first NaN of the last run, as a text."""
        facts = []
        step = self._loop_state.first_nan_step()
        if step is not None:
            facts.append(f"The loss is NaN since step {step}.")
        bad = [p for p in self._paths if not _is_finite(self.run(p))]
        if bad:
            facts.append(f"The first variable that is not finite is {bad[0]!r}.")
        return " ".join(facts)

    @property
    def _paths(self) -> list[str]:
        """The paths of the variables, in the order of creation."""
        variables = self._runtime.program.store.variables
        return [path for path in variables if path in self._loop_state.values]

    def evaluate(
        self,
        estimator: Any,
        input_fn: InputFn,
        steps: int | None = None,
        hooks: Iterable[Hook] | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluates the current values, without a checkpoint.

        Raises:
            ValueError: Another estimator must not evaluate them.
        """
        if estimator is not self._evaluator.estimator:
            raise ValueError(
                "The estimator that evaluates values in memory must be the one "
                f"that trains them, of {self._evaluator.estimator.model_dir!r}. "
                f"Received: {shown(getattr(estimator, 'model_dir', estimator))}. "
                "Pass the training estimator, or evaluate a checkpoint."
            )
        return self._run(self._evaluator.evaluation(input_fn, steps, hooks, name))

    def count_metrics(self) -> MetricCounts:
        """Returns separate counts of the metrics of training."""
        return self._loop_state.metrics.counts()

    def validate(self) -> dict[str, Any]:
        """Returns the result of `train(validation=...)` for the current values."""
        if self._evaluator.validation is None:
            return {}
        # Epochs of several hooks may end here.
        version = self._loop_state.values.version
        if version not in self._validated:
            result = self._run(self._evaluator.validation)
            self._validated = {version: result}
        return self._validated[version]

    def _run(self, evaluation: Evaluation) -> dict[str, Any]:
        def current(
            step: Step, slots: bool
        ) -> contextlib.AbstractContextManager[RunState]:
            del slots  # Training has all optimizer state.
            values = self._loop_state.values
            return contextlib.nullcontext(
                self._runtime.values.of_training(step, values, self._step)
            )

        return evaluation.run(current)


def _is_finite(value: np.ndarray) -> bool:
    if not keras.backend.is_float_dtype(value.dtype):
        return True
    return bool(np.all(np.isfinite(value.astype("float32"))))
