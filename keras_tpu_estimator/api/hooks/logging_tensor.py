"""Hooks that fetch values: to log them regularly, and at the end of a call."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_tpu_estimator.api.hooks.session import Session, check_names, refuse_feed
from keras_tpu_estimator.api.hooks.session_run_hook import (
    EveryRun,
    LoopHook,
    SessionRunArgs,
    SessionRunContext,
    SessionRunValues,
)
from keras_tpu_estimator.api.hooks.timer import SecondOrStepTimer
from keras_tpu_estimator.base.common.types import PyTree

_logger = logging.getLogger("keras_tpu_estimator")


class LoggingTensorHook(LoopHook):
    """A hook that logs values periodically, or at the end.

    The first run is logged. Then runs are counted, not steps; a run of `train`
    has `iterations_per_loop` steps. The logger is `keras_tpu_estimator`, at
    level INFO. The counterpart of `tf.compat.v1.train.LoggingTensorHook`.

    Args:
        tensors: Names of values, or a dict from labels to names; the log sorts
            the labels.
        every_n_iter: Runs between log lines. Defaults to `None`.
        every_n_secs: Seconds between log lines. Defaults to `None`.
        at_end: Whether to log at the end, in addition to an interval or without
            one. Defaults to `False`.
        formatter: Returns a line for a dict of values. Defaults to "name =
            value, ..." and the seconds since the previous line.

    Raises:
        ValueError: Without `at_end`, not exactly one interval is given; or
            `every_n_iter` is not positive.
        TypeError: `tensors` does not consist of names.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> hook = kte.hooks.LoggingTensorHook(
    ...     {"loss": "loss", "bias": "dense/bias"}, every_n_iter=10)
    """

    def __init__(
        self,
        tensors: Mapping[str, Any] | Sequence[str] | str,
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[dict[str, Any]], str] | None = None,
    ):
        only_at_end = at_end and every_n_iter is None and every_n_secs is None
        if not only_at_end and (every_n_iter is None) == (every_n_secs is None):
            raise ValueError(
                "`at_end`, or exactly one of `every_n_iter` and `every_n_secs`, must "
                f"be set. Received: at_end={at_end}, every_n_iter={every_n_iter}, "
                f"every_n_secs={every_n_secs}. Pass one of them, such as "
                "every_n_iter=100."
            )
        if every_n_iter is not None and every_n_iter <= 0:
            raise ValueError(
                "`every_n_iter` must be a positive number of runs. Received: "
                f"{every_n_iter}."
            )
        self._names = _by_tag(tensors)
        self._timer = (
            None if only_at_end else SecondOrStepTimer(every_n_secs, every_n_iter)
        )
        self._at_end = at_end
        # Any run may be the last one.
        self.session_fetches = self._names if at_end else None
        self._formatter = formatter

    def due_steps(self, start: int) -> Iterable[int]:
        """Returns all runs, of which it reads values only by the session."""
        return EveryRun(start)

    def begin(self) -> None:
        """Starts the interval."""
        self._runs = 0
        if self._timer is not None:
            self._timer.reset()

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Requests the values if the interval has passed."""
        del run_context
        if self._timer and self._timer.should_trigger_for_step(self._runs):
            return SessionRunArgs(self._names)
        return None

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Logs them."""
        del run_context
        if run_values.results is not None:
            self._log(run_values.results)
        self._runs += 1

    def end(self, session: Session) -> None:
        """Logs the last values, with `at_end`."""
        if self._at_end:
            self._log(session.run(self._names))

    def _log(self, values: dict[str, Any]) -> None:
        seconds = None
        if self._timer is not None:
            seconds, _ = self._timer.update_last_triggered_step(self._runs)
        if self._formatter is not None:
            _logger.info(self._formatter(values))
            return
        with np.printoptions(suppress=True):
            line = ", ".join(f"{tag} = {v}" for tag, v in values.items())
        if seconds is None:
            _logger.info(line)
        else:
            _logger.info("%s (%.3f sec)", line, seconds)


def _by_tag(tensors: PyTree) -> dict[str, Any]:
    check_names("tensors", tensors)
    if isinstance(tensors, Mapping):
        return {tag: tensors[tag] for tag in sorted(tensors)}
    names = [tensors] if isinstance(tensors, str) else tensors
    return {name: name for name in names}


class FinalOpsHook(LoopHook):
    """A hook that fetches values at the end of a call.

    Tensors of `model_fn` are those of the last step. The counterpart of
    `tf.compat.v1.train.FinalOpsHook`.

    Args:
        final_ops: A name, or a list, tuple or dict of names; `None` for
            nothing.
        final_ops_feed_dict: Must be `None`, because values cannot be fed.

    Raises:
        TypeError: `final_ops` is not a pytree of names.
        ValueError: `final_ops_feed_dict` is set.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> hook = kte.hooks.FinalOpsHook({"loss": "loss", "bias": "dense/bias"})
    >>> hook.final_ops_values is None
    True
    """

    def __init__(self, final_ops: Any, final_ops_feed_dict: None = None):
        if final_ops is not None:
            check_names("final_ops", final_ops)
        refuse_feed("final_ops_feed_dict", final_ops_feed_dict)
        # Any run may be the last one.
        self.session_fetches = self._final_ops = final_ops
        self._values: Any = None

    @property
    def final_ops_values(self) -> Any:
        """NumPy values in the pytree of `final_ops`; `None` before the end."""
        return self._values

    def begin(self) -> None:
        """Deletes the values of an earlier call."""
        self._values = None

    def end(self, session: Session) -> None:
        """Fetches them."""
        if self._final_ops is not None:
            self._values = session.run(self._final_ops)
