"""Hooks that write summaries into the event file."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_tpu_estimator.api.hooks.fetches import check_names
from keras_tpu_estimator.api.hooks.session import Session
from keras_tpu_estimator.api.hooks.session_run_hook import (
    LaterArgs,
    LoopHook,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from keras_tpu_estimator.api.hooks.timer import SecondOrStepTimer
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.files.summary import collecting
from keras_tpu_estimator.files.summary.event_writer import EventWriter
from keras_tpu_estimator.files.summary.metric_writer import SeveralWriters


class SummarySaverHook(SessionRunHook):
    """A hook that writes numbers after the first run, then periodically.

    The counterpart of `tf.compat.v1.train.SummarySaverHook`, for values that
    have a name.

    Args:
        save_steps: Steps between summaries. Defaults to `None`.
        save_secs: Seconds between summaries. Defaults to `None`.
        output_dir: The directory of the event file. Defaults to `None`.
        summary_writer: An `EventWriter`, in place of `output_dir`. Defaults
            to `None`.
        summary_op: Names of numbers, or a dict from tags to names. Defaults to
            `"loss"`.
        scaffold: Accepted; has no effect.

    Raises:
        ValueError: Not exactly one interval is given; or both `scaffold` and
            `summary_op`; or neither `output_dir` nor `summary_writer`.
        TypeError: `summary_op` does not consist of names, or `summary_writer`
            is not an `EventWriter`.

    Example:

    >>> import tempfile
    >>> import keras_tpu_estimator as kte
    >>> hook = kte.hooks.SummarySaverHook(
    ...     save_steps=100, output_dir=tempfile.mkdtemp(),
    ...     summary_op={"bias of the last layer": "dense/bias"})
    """

    allows_run_ahead = True

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: PathLike | None = None,
        summary_writer: EventWriter | None = None,
        scaffold: Any = None,
        summary_op: Mapping[str, str] | Sequence[str] | str | None = None,
    ):
        if scaffold is not None and summary_op is not None:
            raise ValueError(
                "Expected one of `scaffold` and `summary_op`. Received both: "
                f"{scaffold!r} and {summary_op!r}. Leave out `scaffold`."
            )
        self._timer = SecondOrStepTimer(save_secs, save_steps)
        self._names = _by_tag("loss" if summary_op is None else summary_op)
        writer = writer_of(output_dir, summary_writer)
        if writer is None:
            raise ValueError(
                "Expected `output_dir` or `summary_writer`. Received neither. "
                "Pass the directory of the event file, such as "
                "estimator.model_dir."
            )
        self._writer = writer

    def run_ends(self, start: int) -> Iterable[int]:
        """Returns the steps after which it writes, if it counts steps."""
        return self._timer.steps_from(start + 1)

    def begin(self) -> None:
        """Resets the interval."""
        self._timer.reset()

    def before_run(self, run_context: SessionRunContext) -> LaterArgs:
        """Requests the numbers, because the last step of the run is unknown."""
        del run_context
        return LaterArgs(self._names)

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Writes if the interval has passed."""
        del run_values
        session = run_context.session
        step = int(session.run("global_step"))
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            self._writer.scalars(session.run(self._names), step)


def _by_tag(names: Any) -> dict[str, str]:
    check_names("summary_op", names)
    if isinstance(names, Mapping):
        return dict(names)
    return {n: n for n in ([names] if isinstance(names, str) else names)}


class RecordedSummariesHook(LoopHook):
    """A hook that writes the summaries of `model_fn` periodically.

    They are the summaries that `model_fn` recorded in the last step, and the
    `loss`, unless one has that name. They are copied off the devices only when
    they are written.

    Args:
        save_steps: Steps between summaries; the first run is always written.
        newest: Returns the summaries of the last step.
        losses: Returns the losses of all steps of the last run, if `model_fn`
            records nothing; runs may then end at any step. Defaults to `None`.
    """

    allows_run_ahead = True

    def __init__(
        self,
        writer: SeveralWriters,
        save_steps: int,
        newest: Callable[[], Sequence[collecting.Collected]],
        losses: Callable[[], np.ndarray] | None = None,
    ):
        self._writer = writer
        self._save_steps = save_steps
        self._timer = SecondOrStepTimer(every_steps=save_steps)
        self._newest = newest
        self._losses = losses
        self._next_loss = 0

    def run_ends(self, start: int) -> Iterable[int]:
        """Returns the steps whose summaries it writes, except losses."""
        if self._losses is not None:
            return ()
        return self._timer.steps_from(start + 1)

    def run_is_made(self, session: Session) -> None:
        """Writes if the interval has passed."""
        step = int(session.run("global_step"))
        if self._losses is not None:
            if self._next_loss <= step:
                self._write_losses(self._losses(), step)
            return
        if not self._timer.should_trigger_for_step(step):
            return
        self._timer.update_last_triggered_step(step)
        newest = self._newest()
        if not any(
            each.summary.tag == "loss" and each.events is None for each in newest
        ):
            self._writer.write_loss(step, float(session.run("loss")))
        collecting.write(newest, self._writer, step)

    def _write_losses(self, losses: np.ndarray, last: int) -> None:
        """Writes the losses that are due in a run whose last step is given."""
        first = last - len(losses) + 1
        self._next_loss = max(self._next_loss, first)
        while self._next_loss <= last:
            loss = float(losses[self._next_loss - first])
            self._writer.write_loss(self._next_loss, loss)
            self._next_loss += self._save_steps


def writer_of(output_dir: PathLike | None, summary_writer: Any) -> EventWriter | None:
    """Returns a hook's `summary_writer`, or the writer of its directory."""
    if summary_writer is None:
        return EventWriter.for_dir(output_dir) if output_dir else None
    if not isinstance(summary_writer, EventWriter):
        raise TypeError(
            "`summary_writer` must be a "
            "keras_tpu_estimator.summary.EventWriter. Received: "
            f"{shown(summary_writer)}. Pass `output_dir` instead, which "
            "creates one."
        )
    return summary_writer
