"""Early stopping, based on a function or on the event files of evaluations.

The hook has no state in the model, so it can be added to a training that has
checkpoints.
"""

import dataclasses
import glob
import logging
import operator
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from keras_tpu_estimator.api.hooks.session_run_hook import (
    LoopHook,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from keras_tpu_estimator.api.hooks.timer import SecondOrStepTimer
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.estimator.tpu_estimator import TPUEstimator, check_estimator
from keras_tpu_estimator.files.summary.event_file import read_scalars

Compare = Callable[[float, float], bool]

_logger = logging.getLogger("keras_tpu_estimator")


def read_eval_metrics(
    eval_dir: PathLike,
) -> dict[int, dict[str, float]]:
    """Reads the metrics that evaluations wrote into a directory.

    The counterpart of `tf.estimator.experimental.read_eval_metrics`.

    Args:
        eval_dir: The directory, such as `estimator.eval_dir()`; it need not
            exist.

    Returns:
        A dict by global step, in ascending order, of dicts from names to
        numbers. The last value of a step counts.

    Example:

    >>> import tempfile
    >>> import keras_tpu_estimator as kte
    >>> with kte.summary.EventWriter(tempfile.mkdtemp()) as writer:
    ...     writer.metrics({"loss": 0.25}, step=20)
    >>> kte.experimental.read_eval_metrics(writer.logdir)
    {20: {'loss': 0.25}}
    """
    pattern = os.path.join(glob.escape(os.fsdecode(eval_dir)), "*.tfevents.*")
    # Names of event files contain the time of their creation.
    return read_scalars(paths.matching(pattern))


@dataclasses.dataclass(frozen=True)
class History:
    """The values of one metric in all evaluations so far from step `min_steps` on."""

    eval_dir: PathLike
    metric_name: str
    min_steps: int

    def values(self) -> Iterator[tuple[int, float]]:
        """Yields global steps, in ascending order, and values; raises `KeyError` if an
        evaluation lacks the metric.
        """
        for step, metrics in read_eval_metrics(self.eval_dir).items():
            if step < self.min_steps:
                continue
            if self.metric_name not in metrics:
                raise KeyError(
                    f"The evaluation of step {step} in {self.eval_dir!r} must "
                    f"have {self.metric_name!r}. Received only "
                    f"{sorted(metrics)}. Pass one of these as `metric_name`, "
                    "or the `eval_dir` of another evaluation."
                )
            yield step, metrics[self.metric_name]


@dataclasses.dataclass(frozen=True)
class Exceeds:
    """A rule that is true if an evaluation is beyond a threshold."""

    history: History
    is_beyond: Compare
    threshold: float

    def __call__(self) -> bool:
        """Checks all evaluations."""
        for step, value in self.history.values():
            if self.is_beyond(value, self.threshold):
                _logger.info(
                    "%r was %s at step %d, beyond %s.",
                    self.history.metric_name,
                    value,
                    step,
                    self.threshold,
                )
                return True
        return False


@dataclasses.dataclass(frozen=True)
class Stalls:
    """A rule that is true `max_steps` or more after the best evaluation."""

    history: History
    is_better: Compare
    max_steps: int

    def __call__(self) -> bool:
        """Checks all evaluations."""
        best: tuple[int, float] | None = None
        for step, value in self.history.values():
            if best is None or self.is_better(value, best[1]):
                best = step, value
            if step - best[0] >= self.max_steps:
                _logger.info(
                    "%r was best at step %d, with %s, and not better up to step %d.",
                    self.history.metric_name,
                    *best,
                    step,
                )
                return True
        return False


class EarlyStoppingHook(LoopHook):
    """A hook that ends training when a function without arguments returns true."""

    # The function reads results of evaluations, which saving a checkpoint may
    # start.
    acts_last = True

    def __init__(self, should_stop_fn: Callable[[], bool], timer: SecondOrStepTimer):
        self._should_stop_fn = should_stop_fn
        self._timer = timer

    def due_steps(self, start: int) -> Iterable[int]:
        """Returns the steps after which it calls the function, if it counts steps."""
        return self._timer.steps_from(start + 1)

    def begin(self) -> None:
        """Resets the interval, so that the first run counts."""
        self._timer.reset()

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Calls the function if the interval has passed."""
        del run_values
        step = _global_step(run_context.session)
        if not self._timer.should_trigger_for_step(step):
            return
        self._timer.update_last_triggered_step(step)
        if self._should_stop_fn():
            _logger.info("Early stopping at step %d.", step)
            run_context.request_stop()


def _global_step(session: Any) -> int:
    """Returns the global step, also from a `tf.train.MonitoredSession`."""
    step = session.run("global_step")
    if step is None:  # In such a session the name refers to an operation.
        import tensorflow as tf

        variable = tf.compat.v1.train.get_global_step(session.graph)
        step = session.run(variable)
    return int(step)


def make_early_stopping_hook(
    estimator: TPUEstimator,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> SessionRunHook:
    """Returns a hook that ends training when a function returns true.

    The counterpart of `tf.estimator.experimental.make_early_stopping_hook`.

    Args:
        estimator: The `TPUEstimator` that trains.
        should_stop_fn: Function without arguments that returns whether to stop.
            It is called after the first run of the device loop, and then
            periodically.
        run_every_secs: Seconds between its calls. Defaults to 60.
        run_every_steps: Steps between its calls, if `run_every_secs` is `None`.
            Defaults to `None`.

    Returns:
        A hook for `train` or `TrainSpec`. If it stops one process, all stop.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: Not exactly one interval is given.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import os
    >>> estimator = kte.TPUEstimator(
    ...     lambda features, labels, mode, params: None,
    ...     config=kte.RunConfig(), train_batch_size=8)
    >>> hook = kte.experimental.make_early_stopping_hook(
    ...     estimator, lambda: os.path.exists("/run/stop"))
    """
    check_estimator(estimator)
    if not callable(should_stop_fn):
        raise TypeError(
            "`should_stop_fn` must be a function. Received: "
            f"{shown(should_stop_fn)}. Pass one without arguments that "
            "returns True to stop."
        )
    if (run_every_secs is None) == (run_every_steps is None):
        raise ValueError(
            "Exactly one of `run_every_secs` and `run_every_steps` must be "
            f"given. Received: {run_every_secs} and {run_every_steps}. Pass "
            "run_every_secs=None to count steps."
        )
    timer = SecondOrStepTimer(run_every_secs, run_every_steps)
    return EarlyStoppingHook(should_stop_fn, timer)


def stop_if_higher_hook(
    estimator: TPUEstimator,
    metric_name: str,
    threshold: float,
    eval_dir: PathLike | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> SessionRunHook:
    """Returns a hook that ends training when a metric exceeds a threshold.

    The counterpart of `tf.estimator.experimental.stop_if_higher_hook`.

    Args:
        estimator: The `TPUEstimator` that trains.
        metric_name: A name in the results of `evaluate`.
        threshold: The value that one evaluation must exceed.
        eval_dir: The directory of the evaluations. Defaults to
            `estimator.eval_dir()`.
        min_steps: Evaluations before this global step are ignored. Defaults to
            0.
        run_every_secs: Seconds between two checks. Defaults to 60.
        run_every_steps: Steps between two checks, if `run_every_secs` is
            `None`. Defaults to `None`.

    Returns:
        A hook for `train` or `TrainSpec`. It raises `KeyError` if an evaluation
        lacks the metric.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: Not exactly one interval is given, or several processes
            train.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> estimator = kte.TPUEstimator(
    ...     lambda features, labels, mode, params: None,
    ...     config=kte.RunConfig(), train_batch_size=8)
    >>> hook = kte.experimental.stop_if_higher_hook(
    ...     estimator, "accuracy", 0.99, min_steps=1000)
    """
    history = _history(estimator, eval_dir, metric_name, min_steps)
    rule = Exceeds(history, operator.gt, threshold)
    return make_early_stopping_hook(estimator, rule, run_every_secs, run_every_steps)


def stop_if_lower_hook(
    estimator: TPUEstimator,
    metric_name: str,
    threshold: float,
    eval_dir: PathLike | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> SessionRunHook:
    """Returns a hook that ends training when a metric is below a threshold.

    The counterpart of `tf.estimator.experimental.stop_if_lower_hook`.

    Args:
        estimator: The `TPUEstimator` that trains.
        metric_name: A name in the results of `evaluate`.
        threshold: The value that one evaluation must be below.
        eval_dir: As in `stop_if_higher_hook`.
        min_steps: As in `stop_if_higher_hook`.
        run_every_secs: As in `stop_if_higher_hook`.
        run_every_steps: As in `stop_if_higher_hook`.

    Returns:
        A hook for `train` or `TrainSpec`. It raises `KeyError` if an evaluation
        lacks the metric.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: Not exactly one interval is given, or several processes
            train.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> estimator = kte.TPUEstimator(
    ...     lambda features, labels, mode, params: None,
    ...     config=kte.RunConfig(), train_batch_size=8)
    >>> hook = kte.experimental.stop_if_lower_hook(estimator, "loss", 0.01)
    """
    history = _history(estimator, eval_dir, metric_name, min_steps)
    rule = Exceeds(history, operator.lt, threshold)
    return make_early_stopping_hook(estimator, rule, run_every_secs, run_every_steps)


def stop_if_no_increase_hook(
    estimator: TPUEstimator,
    metric_name: str,
    max_steps_without_increase: int,
    eval_dir: PathLike | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> SessionRunHook:
    """Returns a hook that ends training when a metric no longer increases.

    The counterpart of `tf.estimator.experimental.stop_if_no_increase_hook`.

    Args:
        estimator: The `TPUEstimator` that trains.
        metric_name: A name in the results of `evaluate`.
        max_steps_without_increase: Steps since the best evaluation after which
            training ends.
        eval_dir: As in `stop_if_higher_hook`.
        min_steps: As in `stop_if_higher_hook`.
        run_every_secs: As in `stop_if_higher_hook`.
        run_every_steps: As in `stop_if_higher_hook`.

    Returns:
        A hook for `train` or `TrainSpec`. It raises `KeyError` if an evaluation
        lacks the metric.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: Not exactly one interval is given, or several processes
            train.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> estimator = kte.TPUEstimator(
    ...     lambda features, labels, mode, params: None,
    ...     config=kte.RunConfig(), train_batch_size=8)
    >>> hook = kte.experimental.stop_if_no_increase_hook(
    ...     estimator, "accuracy", max_steps_without_increase=1000)
    """
    history = _history(estimator, eval_dir, metric_name, min_steps)
    rule = Stalls(history, operator.gt, max_steps_without_increase)
    return make_early_stopping_hook(estimator, rule, run_every_secs, run_every_steps)


def stop_if_no_decrease_hook(
    estimator: TPUEstimator,
    metric_name: str,
    max_steps_without_decrease: int,
    eval_dir: PathLike | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> SessionRunHook:
    """Returns a hook that ends training when a metric no longer decreases.

    The counterpart of `tf.estimator.experimental.stop_if_no_decrease_hook`.

    Args:
        estimator: The `TPUEstimator` that trains.
        metric_name: A name in the results of `evaluate`.
        max_steps_without_decrease: Steps since the best evaluation after which
            training ends.
        eval_dir: As in `stop_if_higher_hook`.
        min_steps: As in `stop_if_higher_hook`.
        run_every_secs: As in `stop_if_higher_hook`.
        run_every_steps: As in `stop_if_higher_hook`.

    Returns:
        A hook for `train` or `TrainSpec`. It raises `KeyError` if an evaluation
        lacks the metric.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: Not exactly one interval is given, or several processes
            train.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> estimator = kte.TPUEstimator(
    ...     lambda features, labels, mode, params: None,
    ...     config=kte.RunConfig(), train_batch_size=8)
    >>> hook = kte.experimental.stop_if_no_decrease_hook(
    ...     estimator, "loss", max_steps_without_decrease=1000)
    """
    history = _history(estimator, eval_dir, metric_name, min_steps)
    rule = Stalls(history, operator.lt, max_steps_without_decrease)
    return make_early_stopping_hook(estimator, rule, run_every_secs, run_every_steps)


def _history(
    estimator: TPUEstimator,
    eval_dir: PathLike | None,
    metric_name: str,
    min_steps: int,
) -> History:
    check_estimator(estimator)
    directory = estimator.eval_dir() if eval_dir is None else eval_dir
    return History(directory, metric_name, min_steps)
