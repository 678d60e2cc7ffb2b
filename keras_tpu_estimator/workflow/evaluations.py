"""The evaluations of one training, and their results."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from keras_tpu_estimator.api.hooks.timer import SecondOrStepTimer
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.estimator.tpu_estimator import TPUEstimator
from keras_tpu_estimator.workflow.exporters import check_distinct, validate_exporters
from keras_tpu_estimator.workflow.specs import EvalSpec, hooks_that_run

Clock = Callable[[], float]
Evaluate = Callable[..., dict[str, Any]]
ByChief = Callable[[Callable[[], Any]], Any]


def _call(action: Callable[[], Any]) -> Any:
    return action()


class Evaluation:
    """One `EvalSpec`, its timer, and its last results, which are `None` before the
    first evaluation.
    """

    def __init__(
        self,
        estimator: TPUEstimator,
        spec: EvalSpec,
        max_steps: int | None,
        clock: Clock,
    ):
        self.spec = spec
        self._exporters = validate_exporters(spec.exporters)
        self.metrics: dict[str, Any] | None = None
        self.exports: list[Any] | None = None
        self._estimator = estimator
        self._max_steps = max_steps
        by_step = spec.throttle_steps is not None
        self._timer = SecondOrStepTimer(
            every_secs=None if by_step else spec.throttle_secs,
            every_steps=spec.throttle_steps,
            clock=clock,
        )

    def is_due(self, step: int) -> bool:
        """Returns whether the interval since the last evaluation has passed."""
        return self._timer.should_trigger_for_step(step)

    def has_done(self, step: int) -> bool:
        """Returns whether the last evaluation was of this step."""
        return self._timer.last_triggered_step() == step

    def run(
        self,
        step: int,
        checkpoint: str,
        evaluate: Evaluate,
        by_chief: ByChief = _call,
    ) -> None:
        """Evaluates, and exports on the chief; if this raises, the next evaluation is
        due immediately.
        """
        self._timer.update_last_triggered_step(step)
        try:
            self._run(step, checkpoint, evaluate, by_chief)
        except BaseException:
            self._timer.reset()
            raise

    def run_once(self) -> None:
        """Evaluates without training, checkpoints and exports, for a `CallReceiver`."""
        spec = self.spec
        self.metrics = self._estimator.evaluate(
            spec.input_fn,
            steps=spec.steps,
            hooks=hooks_that_run(spec),
            name=spec.name,
        )
        self.exports = [None for _ in self._exporters]

    def _run(
        self, step: int, checkpoint: str, evaluate: Evaluate, by_chief: ByChief
    ) -> None:
        spec = self.spec
        metrics = self.metrics = evaluate(
            spec.input_fn,
            steps=spec.steps,
            hooks=hooks_that_run(spec),
            name=spec.name,
        )
        is_final = self._max_steps is not None and step >= self._max_steps
        self.exports = by_chief(
            lambda: [
                exporter.export(
                    estimator=self._estimator,
                    export_path=os.path.join(
                        self._estimator.model_dir, "export", exporter.name
                    ),
                    checkpoint_path=checkpoint,
                    eval_result=metrics,
                    is_the_final_export=is_final,
                )
                for exporter in self._exporters
            ]
        )


class Evaluations:
    """All evaluations of one training, whose specs and exporters must have different
    names.
    """

    def __init__(
        self,
        estimator: TPUEstimator,
        eval_spec: EvalSpec | Iterable[EvalSpec],
        max_steps: int | None = None,
        clock: Clock = time.monotonic,
    ):
        specs = _checked(eval_spec)
        self._is_single = isinstance(eval_spec, EvalSpec)
        self._all = [Evaluation(estimator, spec, max_steps, clock) for spec in specs]

    def __iter__(self) -> Iterator[Evaluation]:
        return iter(self._all)

    def run_once(self) -> None:
        """Runs each evaluation once, without a checkpoint, for a `CallReceiver`."""
        for evaluation in self._all:
            evaluation.run_once()

    def results(self) -> tuple[Any, Any]:
        """Returns the last metrics and exports: one of each for a single `EvalSpec`,
        dicts by name for a list, and `None` if nothing was evaluated.
        """
        evaluated = [one for one in self._all if one.metrics is not None]
        if not evaluated:
            return None, None
        if self._is_single:
            return evaluated[0].metrics, evaluated[0].exports
        return (
            {evaluation.spec.name: evaluation.metrics for evaluation in evaluated},
            {evaluation.spec.name: evaluation.exports for evaluation in evaluated},
        )


def _checked(eval_spec: EvalSpec | Iterable[EvalSpec]) -> tuple[EvalSpec, ...]:
    if isinstance(eval_spec, EvalSpec):
        return (eval_spec,)
    if not isinstance(eval_spec, Iterable):
        raise _wrong_type(eval_spec)
    specs = tuple(eval_spec)
    for spec in specs:
        if not isinstance(spec, EvalSpec):
            raise _wrong_type(spec)
    if not specs:
        raise ValueError(
            "`eval_spec` must be an EvalSpec or a list of them. Received an "
            "empty list. Call `estimator.train` to train without evaluations."
        )
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise ValueError(
            "EvalSpecs must have different names, because each writes to its "
            f"own directory. Received: {names}. Pass `name`."
        )
    check_distinct(e for spec in specs for e in validate_exporters(spec.exporters))
    return specs


def _wrong_type(value: Any) -> TypeError:
    return TypeError(
        "`eval_spec` must be an EvalSpec or a list of them. Received: "
        f"{shown(value)}. Make one with keras_tpu_estimator.EvalSpec."
    )
