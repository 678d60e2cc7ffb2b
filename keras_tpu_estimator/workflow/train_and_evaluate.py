"""Training with evaluations, in one process or several."""

import functools
import logging
from collections.abc import Iterable
from typing import Any

from keras_tpu_estimator.api.config.run_config import RunConfig
from keras_tpu_estimator.api.hooks.checkpoint_saver import (
    CheckpointSaverListener,
)
from keras_tpu_estimator.api.hooks.session import Session
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.user_code import UserFrames
from keras_tpu_estimator.estimator.tpu_estimator import TPUEstimator, check_estimator
from keras_tpu_estimator.files.directory import state_file
from keras_tpu_estimator.files.formats import loading
from keras_tpu_estimator.runs import call_receiver
from keras_tpu_estimator.workflow.continuous import ContinuousEvaluator
from keras_tpu_estimator.workflow.evaluations import Evaluate, Evaluation, Evaluations
from keras_tpu_estimator.workflow.specs import (
    EvalSpec,
    TrainSpec,
    hooks_that_run,
)


@UserFrames()
def train_and_evaluate(
    estimator: TPUEstimator,
    train_spec: TrainSpec,
    eval_spec: EvalSpec | Iterable[EvalSpec],
) -> tuple[Any, Any]:
    """Trains, and evaluates checkpoints during training.

    Evaluations run after a checkpoint is saved, except the initial one, as
    often as each `EvalSpec` specifies, and at the end. Training waits
    meanwhile: its input is not restarted, nothing is compiled twice, and the
    values in memory are evaluated.

    TF_CONFIG determines the task of this process. A chief and its workers
    train, a master trains and evaluates, and an evaluator evaluates checkpoints
    until training is complete, like `evaluate_continuously`. The counterpart of
    `tf.estimator.train_and_evaluate`.

    Args:
        estimator: A `TPUEstimator` that saves checkpoints.
        train_spec: The training.
        eval_spec: The evaluation and its exports; or a list of `EvalSpec`s with
            different names.

    Returns:
        The metrics of the last evaluation, and a list of the exporters'
        results, `None` for those that exported nothing. For a list of
        `EvalSpec`s, two dicts of these by name. `(None, None)` if training had
        already ended, or another process evaluates.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: No checkpoints are saved, specs or exporters have the same
            name, TF_CONFIG has an unknown task for this process, or training or
            evaluation fails.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import keras, numpy as np
    >>> def model_fn(features, labels, mode, params):
    ...     y = keras.layers.Dense(1)(features["x"])
    ...     loss = keras.ops.mean((y - labels) ** 2)
    ...     optimizer = kte.CrossShardOptimizer(keras.optimizers.SGD(0.1))
    ...     return kte.TPUEstimatorSpec(
    ...         mode, loss=loss, train_op=optimizer.minimize(loss))
    >>> def input_fn(params):
    ...     x = np.ones((params["batch_size"], 2), "float32")
    ...     return {"x": x}, 3 * x[:, :1]
    >>> estimator = kte.TPUEstimator(
    ...     model_fn, config=kte.RunConfig(save_checkpoints_steps=50),
    ...     train_batch_size=8, eval_batch_size=8)
    >>> metrics, exports = kte.train_and_evaluate(
    ...     estimator,
    ...     kte.TrainSpec(input_fn, max_steps=100),
    ...     kte.EvalSpec(input_fn, steps=None, throttle_steps=50))
    >>> bool(metrics["loss"] < 1e-6), int(metrics["global_step"]), exports
    (True, 100, [])
    """
    check_estimator(estimator)
    if not isinstance(train_spec, TrainSpec):
        raise TypeError(
            "`train_spec` must be a TrainSpec. Received: "
            f"{shown(train_spec)}. Make one with "
            "keras_tpu_estimator.TrainSpec."
        )
    evaluations = Evaluations(estimator, eval_spec, train_spec.max_steps)
    config = estimator.config
    _check_part(config)
    if call_receiver.receiver() is not None:
        estimator.train(train_spec.input_fn, max_steps=train_spec.max_steps)
        evaluations.run_once()
    elif config.task_type == "evaluator":
        max_steps = train_spec.max_steps
        ContinuousEvaluator(estimator, evaluations, max_steps).run()
    elif config.cluster_spec and config.task_type != "master":
        _train(estimator, train_spec)
    else:
        listener = EvaluationListener(estimator, evaluations)
        _train(estimator, train_spec, listener)
    return evaluations.results()


def _train(
    estimator: TPUEstimator,
    spec: TrainSpec,
    *listeners: CheckpointSaverListener,
) -> None:
    """Trains, and marks the directory as complete for evaluators."""
    estimator.train(
        spec.input_fn,
        hooks=hooks_that_run(spec),
        max_steps=spec.max_steps,
        saving_listeners=(*(spec.saving_listeners or ()), *listeners),
    )
    if estimator.config.is_chief:
        latest = estimator.latest_checkpoint()
        step = 0 if latest is None else loading.step_of(latest)
        state_file.mark_complete(estimator.model_dir, step)


def _check_part(config: RunConfig) -> None:
    """Checks that this process has a task in training."""
    if config.task_type == "ps":
        raise ValueError(
            "TF_CONFIG must have no parameter servers, because every device "
            "has all variables. Received task type 'ps'. Remove 'ps' from "
            "its cluster, and start no process for it."
        )
    if config.task_type == "evaluator" and config.task_id > 0:
        raise ValueError(
            "TF_CONFIG must have one evaluator, with index 0. Received index "
            f"{config.task_id}. Pass several EvalSpecs to evaluate on several "
            "data sets, or call `evaluate_continuously`."
        )


_logger = logging.getLogger("keras_tpu_estimator")


class EvaluationListener(CheckpointSaverListener):
    """A listener that evaluates due checkpoints, and always the last one, and does not
    change input, compiled programs and values of training.
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

    def _evaluate(self, evaluation: Evaluation, session: Session, step: int) -> None:
        if session.is_so_anywhere(session.is_interrupted):
            # The process should end soon, and a saved checkpoint can be
            # evaluated later.
            _logger.warning(
                "Step %d is not evaluated, because the process was asked to stop.",
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
        """Returns a function that evaluates the values in memory if they are those of
        the checkpoint.
        """
        estimator = self._estimator
        saved = session.saved_step(estimator.model_dir)
        if saved is not None and saved == int(session.run("global_step")):
            return functools.partial(session.evaluate, estimator)
        return functools.partial(estimator.evaluate, checkpoint_path=checkpoint)
