"""Early stopping, based on the event files of evaluations."""

import operator

from keras_tpu_estimator.api.hooks.session_run_hook import SessionRunHook
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.estimator.tpu_estimator import TPUEstimator
from keras_tpu_estimator.workflow.early_stopping import make_early_stopping_hook
from keras_tpu_estimator.workflow.specs import check_estimator
from keras_tpu_estimator.workflow.stopping_rules import Exceeds, History, Stalls


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
