"""What hooks may ask of `train`, beside values."""

from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from keras_tpu_estimator.ground.base.shown import shown
from keras_tpu_estimator.ground.base.types import InputFn
from keras_tpu_estimator.ground.base.types import PathLike
from keras_tpu_estimator.ground.hosts.host_exchange import HostExchange
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.hooked_runs import LiveModel
from keras_tpu_estimator.runs.loop_state import LoopState
from keras_tpu_estimator.runs.saver import Saver
from keras_tpu_estimator.spec.hooks.session import Session
from keras_tpu_estimator.spec.hooks.session import T
from keras_tpu_estimator.spec.hooks.session_run_hook import Hook

Evaluate = Callable[..., dict[str, Any]]


class TrainingSession(Session):
    """A session whose values can be saved and evaluated.

    Args:
        context: What the calls have in common.
        progress: The loop's current values.
        saver: Writes them.
        estimator: Who trains.
        evaluate: Evaluates them; called with the arguments of `evaluate`.
        is_interrupted: Whether the process was asked to stop.
        call: With the other hosts.
    """

    def __init__(
        self,
        context: EstimatorContext,
        progress: LoopState,
        saver: Saver,
        estimator: Any,
        evaluate: Evaluate,
        is_interrupted: Callable[[], bool],
        call: HostExchange,
    ):
        live = LiveModel(context, progress)
        super().__init__(live.fetch, live, progress.wait)
        self._store = context.runtime.program.store
        self._loop_state = progress
        self._saver = saver
        self._estimator = estimator
        self._evaluate = evaluate
        self._is_interrupted = is_interrupted
        self._call = call

    @property
    def is_interrupted(self) -> bool:
        """Whether the process was asked to stop, so that it should hurry."""
        return self._is_interrupted()

    def is_so_anywhere(self, is_so: bool) -> bool:
        """Whether something is so on any host; all hosts ask at once."""
        return self._call.any(is_so)

    def by_chief(self, action: Callable[[], T]) -> T:
        """Does something on the chief alone, for which other hosts wait."""
        return self._call.by_chief(action)

    def saved_step(self, directory: PathLike) -> int | None:
        """The step of this session's last checkpoint in a directory."""
        return self._saver.saved_step(directory)

    def save_checkpoint(
        self,
        directory: PathLike,
        basename: str = "model.ckpt",
        wait: bool = True,
    ) -> None:
        """Writes the current values into a checkpoint."""
        # Those of all hosts, which compare what was assigned.
        self._call.barrier()
        self._saver.save(directory, basename)
        if wait:
            self._saver.wait()

    def whence_nan(self) -> str:
        """What is known of the first NaN of the last run, as a sentence."""
        told = []
        step = self._loop_state.first_nan_step()
        if step is not None:
            told.append(f"The loss is NaN from step {step} on.")
        bad = [p for p in self._paths if not _is_finite(self.run(p))]
        if bad:
            told.append(f"The first variable that is not finite is {bad[0]!r}.")
        return " ".join(told)

    @property
    def _paths(self) -> list[str]:
        """Paths of the variables, in the order of creation."""
        variables = self._store.variables
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
            ValueError: Another estimator is to evaluate them.
        """
        if estimator is not self._estimator:
            raise ValueError(
                "Values in memory are evaluated by the estimator that trains "
                f"them, of {self._estimator.model_dir!r}. Received another: "
                f"{shown(getattr(estimator, 'model_dir', estimator))}. Pass "
                "the former, or evaluate a checkpoint with the latter."
            )
        return self._evaluate(input_fn, steps, hooks, name)


def _is_finite(value: np.ndarray) -> bool:
    if not keras.backend.is_float_dtype(value.dtype):
        return True
    return bool(np.all(np.isfinite(value.astype("float32"))))
