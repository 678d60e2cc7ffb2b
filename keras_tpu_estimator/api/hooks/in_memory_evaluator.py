"""A hook that evaluates during training, without a checkpoint."""

from collections.abc import Iterable
from typing import Any

from keras_tpu_estimator.api.hooks.hook_list import validate_hooks
from keras_tpu_estimator.api.hooks.session import Session
from keras_tpu_estimator.api.hooks.session_run_hook import (
    EveryRun,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from keras_tpu_estimator.api.hooks.timer import SecondOrStepTimer
from keras_tpu_estimator.base.common.types import InputFn


class InMemoryEvaluatorHook(SessionRunHook):
    """A hook that evaluates the values that training has in memory.

    It evaluates before the first run, after every `every_n_iter` runs, and at
    the end. A run has `iterations_per_loop` steps. Results are logged and
    written to `estimator.eval_dir(name)`, like those of `evaluate`. The values
    of training do not change. The counterpart of
    `tf.estimator.experimental.InMemoryEvaluatorHook`.

    Args:
        estimator: The `TPUEstimator` that trains, with an `eval_batch_size`.
        input_fn: As in `TPUEstimator.evaluate`. It is called for each
            evaluation.
        steps: Batches to evaluate. Defaults to all.
        hooks: Called around every run of an evaluation. Defaults to none.
        name: The name of the evaluation. Defaults to `None`.
        every_n_iter: Runs of training between evaluations. Defaults to 100.

    Raises:
        ValueError: `every_n_iter` is not positive; from
            `after_create_session`, if another estimator trains.
        TypeError: A hook is not a `SessionRunHook`.
        RuntimeError: From `after_create_session`, in `evaluate` or `predict`.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> estimator = kte.TPUEstimator(
    ...     lambda features, labels, mode, params: None,
    ...     config=kte.RunConfig(), train_batch_size=8, eval_batch_size=8)
    >>> hook = kte.experimental.InMemoryEvaluatorHook(
    ...     estimator, lambda params: [], every_n_iter=10)
    """

    def __init__(
        self,
        estimator: Any,
        input_fn: InputFn,
        steps: int | None = None,
        hooks: Iterable[SessionRunHook] | None = None,
        name: str | None = None,
        every_n_iter: int | None = 100,
    ):
        if every_n_iter is None or every_n_iter <= 0:
            raise ValueError(
                "`every_n_iter` must be a positive number of runs. Received: "
                f"{every_n_iter}."
            )
        self._estimator = estimator
        self._input_fn = input_fn
        self._steps = steps
        self._hooks = validate_hooks(hooks)
        self._name = name
        self._timer = SecondOrStepTimer(every_steps=every_n_iter)

    def due_steps(self, start: int) -> Iterable[int]:
        """Returns all runs, of which it reads values only by the session."""
        return EveryRun(start)

    def after_create_session(self, session: Session, coord: Any) -> None:
        """Evaluates the initial values."""
        del coord
        self._runs = 0
        self._evaluate(session)

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Evaluates if the interval has passed."""
        del run_values
        self._runs += 1
        if self._timer.should_trigger_for_step(self._runs):
            self._evaluate(run_context.session)

    def end(self, session: Session) -> None:
        """Evaluates the last values, unless they have been evaluated."""
        if self._timer.last_triggered_step() != self._runs:
            self._evaluate(session)

    def _evaluate(self, session: Session) -> None:
        self._timer.update_last_triggered_step(self._runs)
        session.evaluate(
            self._estimator,
            self._input_fn,
            steps=self._steps,
            hooks=self._hooks,
            name=self._name,
        )
