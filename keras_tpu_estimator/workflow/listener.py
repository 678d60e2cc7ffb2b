"""A listener that evaluates checkpoints while training waits."""

import functools
import logging

from keras_tpu_estimator.estimator import TPUEstimator
from keras_tpu_estimator.files.formats import loading
from keras_tpu_estimator.spec.hooks.checkpoint_saver import (
    CheckpointSaverListener,
)
from keras_tpu_estimator.spec.hooks.session import Session
from keras_tpu_estimator.workflow.evaluations import Evaluate
from keras_tpu_estimator.workflow.evaluations import Evaluation
from keras_tpu_estimator.workflow.evaluations import Evaluations

_logger = logging.getLogger("keras_tpu_estimator")


class EvaluationListener(CheckpointSaverListener):
    """A listener that evaluates due checkpoints, and always the last one.

    Input, compiled programs and values of training do not change.
    """

    def __init__(self, estimator: TPUEstimator, evaluations: Evaluations):
        self._estimator = estimator
        self._evaluations = evaluations

    def begin(self) -> None:
        """Stores the step at which training starts."""
        latest = self._estimator.latest_checkpoint()
        self._start = None if latest is None else loading.step_of(latest)

    def after_save(self, session: Session, global_step_value: int) -> None:
        """Evaluates if an evaluation is due, but not at the first step."""
        if self._start is None:
            self._start = global_step_value
        if global_step_value == self._start:
            return
        for evaluation in self._evaluations:
            is_due = evaluation.is_due(global_step_value)
            if session.is_so_anywhere(is_due):
                self._evaluate(evaluation, session, global_step_value)

    def end(self, session: Session, global_step_value: int) -> None:
        """Evaluates the last checkpoint, unless that has been done."""
        for evaluation in self._evaluations:
            if not evaluation.has_done(global_step_value):
                self._evaluate(evaluation, session, global_step_value)

    def _evaluate(
        self, evaluation: Evaluation, session: Session, step: int
    ) -> None:
        if session.is_so_anywhere(session.is_interrupted):
            # The process should end soon, and a saved checkpoint can be
            # evaluated later.
            _logger.warning(
                "Step %d is not evaluated, because the process was asked to "
                "stop.",
                step,
            )
            return
        checkpoint = self._estimator.latest_checkpoint()
        if checkpoint is None or loading.step_of(checkpoint) != step:
            _logger.warning(
                "Step %d is not evaluated, because it is not in %s, where "
                "the latest checkpoint is %s.",
                step,
                self._estimator.model_dir,
                checkpoint,
            )
            return
        evaluation.run(
            step,
            checkpoint,
            self._evaluate_fn(session, checkpoint),
            session.by_chief,
        )

    def _evaluate_fn(self, session: Session, checkpoint: str) -> Evaluate:
        """Returns a function that evaluates the values in memory if they are
        those of the checkpoint.
        """
        estimator = self._estimator
        saved = session.saved_step(estimator.model_dir)
        if saved is not None and saved == int(session.run("global_step")):
            return functools.partial(session.evaluate, estimator)
        return functools.partial(estimator.evaluate, checkpoint_path=checkpoint)
