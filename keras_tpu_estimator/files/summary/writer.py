"""The writer of summaries on the host."""

import contextlib
from typing import Any

import numpy as np

from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.files.summary import recording
from keras_tpu_estimator.files.summary.event_writer import EventWriter
from keras_tpu_estimator.files.summary.kinds import Summary


class SummaryWriter(recording.Sink):
    """Writes the summaries in `with` blocks of `as_default`.

    `create_file_writer` makes one. The counterpart of
    `tf.summary.SummaryWriter`.

    Args:
        events: The writer of the event file.
    """

    events: EventWriter

    def __init__(self, events: EventWriter) -> None:
        self.events = events
        self._is_closed = False

    def as_default(
        self, step: Any = None
    ) -> contextlib.AbstractContextManager["SummaryWriter"]:
        """Makes this the thread's default writer during a `with` block.

        The summaries are flushed at its end; in a `host_call`, at the end of
        the loop. In a `model_fn` they are written together with its other
        summaries.

        Args:
            step: The step of summaries without one. By default it does not
                change.

        Raises:
            RuntimeError: The writer is closed.

        Example:

        >>> import keras_tpu_estimator as kte
        >>> import tempfile
        >>> writer = kte.summary.create_file_writer(tempfile.mkdtemp())
        >>> with writer.as_default(step=10):
        ...     kte.summary.scalar("loss", 0.5)
        True
        """
        if self._is_closed:
            raise RuntimeError(
                "The summary writer must be open. Received a closed one. Make "
                "another by `create_file_writer`, or close it later."
            )
        return recording.AsDefault(self, step, self.flush)

    def take(self, summary: Summary, data: Any, step: Any) -> bool:
        """Writes one summary."""
        if step is None:
            raise ValueError(
                f"The summary {summary.tag!r} must have a step. Received "
                "none. Pass `step`, or set a default by "
                "`writer.as_default(step=...)` or "
                "`summary.experimental.set_step(...)`."
            )
        reduced = summary.reduced(summary.tensors(data, np))
        self.events.write(summary.serialized(reduced), integer_step(step))
        return True

    def flush(self) -> None:
        """Makes all written summaries readable by other programs."""
        if not self._is_closed:
            self.events.flush()

    def close(self) -> None:
        """Flushes and closes the file."""
        if not self._is_closed:
            self.events.close()
            self._is_closed = True


def create_file_writer(
    logdir: PathLike,
    max_queue: int | None = None,
    flush_millis: int | None = None,
    filename_suffix: str | None = None,
    name: str | None = None,
) -> SummaryWriter:
    """Makes a writer of summaries.

    All writers of one directory with the same arguments share an event file, so
    a `host_call` may make one at every step.

    Args:
        logdir: The directory of the event file, created if necessary.
        max_queue: A write also flushes if more than this number of summaries
            are waiting. Defaults to no limit.
        flush_millis: A write also flushes if this many milliseconds have passed
            since the last flush. Defaults to 10000.
        filename_suffix: The end of the file's name. Defaults to none.
        name: Accepted for compatibility. Defaults to `None`.

    Returns:
        A `SummaryWriter`.

    Raises:
        ValueError: `logdir` is `None`.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import tempfile
    >>> writer = kte.summary.create_file_writer(tempfile.mkdtemp())
    >>> with writer.as_default(), kte.summary.record_if(True):
    ...     kte.summary.scalar("loss", 0.25, step=1)
    True
    >>> writer.close()

    Reference: `tf.summary.create_file_writer`.
    """
    del name
    if logdir is None:
        raise ValueError("`logdir` must be the path of a directory. Received: None")
    settings: dict[str, Any] = {}
    if max_queue is not None:
        settings["max_queue"] = int(max_queue)
    if flush_millis is not None:
        settings["flush_secs"] = flush_millis / 1000
    if filename_suffix is not None:
        settings["filename_suffix"] = filename_suffix
    return SummaryWriter(EventWriter.for_dir(logdir, **settings))


def integer_step(step: Any) -> int:
    """Returns a step of any integer type as an `int`."""
    if type(step) is int:
        return step
    array = np.asarray(step)
    if array.size != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            "The step of a summary must be one integer. Received: "
            f"{shown(step)}. In a `host_call` a step from `model_fn` has one "
            "element for each core: take step[0]."
        )
    return int(array.item())
