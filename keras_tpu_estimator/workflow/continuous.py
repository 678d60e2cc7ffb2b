"""Evaluation of checkpoints in a process beside the training process."""

import functools
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from keras_tpu_estimator.base.common.field_checks import check_int
from keras_tpu_estimator.base.common.user_code import UserFrames
from keras_tpu_estimator.estimator.tpu_estimator import TPUEstimator, check_estimator
from keras_tpu_estimator.files.directory import state_file
from keras_tpu_estimator.files.directory.location import exists
from keras_tpu_estimator.files.formats import loading
from keras_tpu_estimator.runs import call_receiver
from keras_tpu_estimator.workflow.evaluations import Clock, Evaluations
from keras_tpu_estimator.workflow.specs import EvalSpec

_SECONDS_BETWEEN_LOOKS = 1.0

_logger = logging.getLogger("keras_tpu_estimator")


@UserFrames()
def evaluate_continuously(
    estimator: TPUEstimator,
    eval_spec: EvalSpec | Iterable[EvalSpec],
    max_steps: int | None = None,
    timeout_secs: float | None = None,
) -> tuple[Any, Any]:
    """Evaluates another process's checkpoints until training is complete.

    It evaluates the newest checkpoint after `start_delay_secs`, as often as
    `throttle_secs` or `throttle_steps` of each `EvalSpec` allow, and always the
    last one. Training is complete when `train_and_evaluate` has ended in the
    same `model_dir`, for any reason, or when a checkpoint has reached
    `max_steps`. Before `start_delay_secs` only the latter counts, because
    training may be about to resume. With TF_CONFIG, `train_and_evaluate` calls
    this in a task of type 'evaluator'.

    Args:
        estimator: A `TPUEstimator` with the `model_dir` of the training.
        eval_spec: The evaluation and its exports; or a list of `EvalSpec`s with
            different names.
        max_steps: The global step at which training is complete. Defaults to
            `None`.
        timeout_secs: Seconds without a new checkpoint after which training
            counts as complete. Defaults to `None`, for no limit.

    Returns:
        The last metrics and exports, as from `train_and_evaluate`.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: `max_steps` is not positive, specs or exporters have the
            same name, or `evaluate` fails.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> estimator = kte.TPUEstimator(
    ...     lambda features, labels, mode, params: None,
    ...     config=kte.RunConfig(), train_batch_size=8, eval_batch_size=8)
    >>> spec = kte.EvalSpec(lambda params: [], steps=None)
    >>> kte.evaluate_continuously(estimator, spec, timeout_secs=0)
    (None, None)
    """
    check_estimator(estimator)
    if max_steps is not None:
        check_int("max_steps", max_steps, minimum=1)
    evaluations = Evaluations(estimator, eval_spec, max_steps)
    if call_receiver.receiver() is not None:
        evaluations.run_once()
        return evaluations.results()
    evaluator = ContinuousEvaluator(estimator, evaluations, max_steps)
    evaluator.run(timeout_secs)
    return evaluations.results()


class ContinuousEvaluator:
    """A loop that looks for checkpoints, and evaluates those that are due."""

    def __init__(
        self,
        estimator: TPUEstimator,
        evaluations: Evaluations,
        max_steps: int | None = None,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self._estimator = estimator
        self._evaluations = evaluations
        self._max_steps = max_steps
        self._clock = clock
        self._sleep = sleep
        self._newest: str | None = None
        self._began = self._newest_since = clock()

    def run(self, timeout_secs: float | None = None) -> None:
        """Evaluates until training is complete, or `timeout_secs` pass without a
        checkpoint.
        """
        model_dir = self._estimator.model_dir
        _logger.info("Waiting for checkpoints in %s.", model_dir)
        is_over = False
        while not is_over:
            try:
                is_over = self._look_and_evaluate(timeout_secs)
            except Exception as error:
                if self._newest is None or exists(self._newest):
                    raise
                _logger.warning(
                    "%s was removed before its evaluation was complete (%s). "
                    "Continuing with the next checkpoint.",
                    self._newest,
                    error,
                )
                continue
            if not is_over:
                self._sleep(_SECONDS_BETWEEN_LOOKS)
        _logger.info("Evaluation of %s is complete.", model_dir)

    def _look_and_evaluate(self, timeout_secs: float | None) -> bool:
        """Evaluates due checkpoints; returns whether training is complete."""
        # The marker is read before the checkpoints, so that the last one is not missed.
        is_over = self._is_complete()
        checkpoint = self._look()
        if self._max_steps is not None and checkpoint is not None:
            is_over |= checkpoint.step >= self._max_steps
        waited = self._clock() - self._newest_since
        if timeout_secs is not None and waited >= timeout_secs:
            _logger.warning("No new checkpoint in %s s.", timeout_secs)
            is_over = True
        if checkpoint is not None:
            self._evaluate(checkpoint, is_last=is_over)
        return is_over

    def _is_complete(self) -> bool:
        """Returns whether this training has marked the directory as complete; training
        that starts together with this process removes an old marker.
        """
        delays = (evaluation.spec.start_delay_secs for evaluation in self._evaluations)
        if self._clock() - self._began < min(delays):
            return False
        return state_file.training_is_complete(self._estimator.model_dir)

    def _look(self) -> "_Checkpoint | None":
        """Returns the newest checkpoint."""
        newest = self._estimator.latest_checkpoint()
        if newest != self._newest:
            self._newest, self._newest_since = newest, self._clock()
        if newest is None:
            return None
        return _Checkpoint(loading.step_of(newest), newest)

    def _evaluate(self, checkpoint: "_Checkpoint", is_last: bool) -> None:
        """Evaluates a checkpoint if it is due, or the last."""
        step, prefix = checkpoint
        evaluate = functools.partial(self._estimator.evaluate, checkpoint_path=prefix)
        for evaluation in self._evaluations:
            waited = self._clock() - self._began
            is_due = waited >= evaluation.spec.start_delay_secs
            is_due = is_due and evaluation.is_due(step)
            if is_due or (is_last and not evaluation.has_done(step)):
                evaluation.run(step, prefix, evaluate)


class _Checkpoint(NamedTuple):
    """A checkpoint that may be evaluated."""

    step: int
    prefix: str
