"""A writer of TensorBoard event files, without TensorFlow."""

import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.hosts.agreement import is_chief
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.base.storage.growing_files import close_soon, flush_at_end
from keras_tpu_estimator.files.summary.event_file import EventFile, serialized

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary

_logger = logging.getLogger(__name__)


class EventWriter:
    """Writes summaries to event files for TensorBoard.

    The first write creates an event file, which is open only during writes.
    After `close`, or if the directory is deleted, the next flush starts a new
    file, which TensorBoard shows as the continuation. Any thread may write. The
    end of each `train`, `evaluate` and `predict` flushes all existing writers.
    With several hosts, only the chief writes.

    Args:
        logdir: The directory of the file, created if necessary, or its URL.
        flush_secs: A write also flushes if this many seconds have passed since
            the last flush. Defaults to 10.0.
        max_queue: A write also flushes if more than this number of events are
            waiting. Defaults to 1000.
        filename_suffix: The end of the file's name. Defaults to none.

    Raises:
        ValueError: `logdir` is the URL of a local path, or has an unknown scheme.
        ImportError: The driver of its store is not installed.

    Example:

    >>> import tempfile
    >>> import keras_tpu_estimator as kte
    >>> with kte.summary.EventWriter(tempfile.mkdtemp()) as writer:
    ...     writer.scalars({"loss": 0.25}, step=1)
    """

    def __init__(
        self,
        logdir: PathLike,
        flush_secs: float = 10.0,
        max_queue: float = 1000,
        filename_suffix: str = "",
    ) -> None:
        self._logdir = os.fsdecode(logdir)
        paths.check(self._logdir)
        self._flush_secs = flush_secs
        self._max_queue = max_queue
        self._suffix = filename_suffix
        self._file: EventFile | None = None
        self._lock = threading.Lock()

    @staticmethod
    def for_dir(logdir: PathLike, **settings: Any) -> "EventWriter":
        """Returns this process's shared writer for a directory.

        Args:
            logdir: The directory of the file, by any of its paths.
            **settings: The arguments of the constructor. Other settings select
                another writer.

        Returns:
            The same writer each time, usable even after `close`.

        Example:

        >>> import os, tempfile
        >>> logdir = tempfile.mkdtemp()
        >>> writer = EventWriter.for_dir(logdir)
        >>> EventWriter.for_dir(os.path.join(logdir, os.curdir)) is writer
        True

        Reference: `tf.compat.v1.summary.FileWriterCache`.
        """
        path = paths.canonical(logdir)
        key = (path, *sorted(settings.items()))
        if key not in _shared_writers:
            _shared_writers.setdefault(key, EventWriter(path, **settings))
        return _shared_writers[key]

    @property
    def logdir(self) -> str:
        """The directory of the event file."""
        return self._logdir

    def scalars(
        self,
        values: Mapping[str, float],
        step: int,
        wall_time: float | None = None,
    ) -> None:
        """Writes numbers that TensorBoard plots over the steps.

        Args:
            values: Numbers, or arrays of one element, by tag.
            step: The global step that they belong to.
            wall_time: The time in seconds since 1970. Defaults to the clock.

        Raises:
            ValueError: A value is not one number.

        Example:

        >>> import tempfile
        >>> with EventWriter(tempfile.mkdtemp()) as writer:
        ...     writer.scalars({"loss": 0.25, "examples/sec": 800}, step=1)
        """
        self._write_values(
            [_scalar(tag, _number(tag, v)) for tag, v in values.items()],
            step,
            wall_time,
        )

    def metrics(self, values: Mapping[str, Any], step: int) -> None:
        """Writes the results of an evaluation.

        Python and NumPy numbers become scalars, NumPy arrays become tensors,
        and bytes must be a serialized `Summary`, for example of images, whose
        values get the tags 'name/0', 'name/1' and so on. None and 'global_step'
        are ignored. A warning is logged for other values that are not written.

        Args:
            values: Results by name, as `evaluate` returns them.
            step: The global step that was evaluated.

        Example:

        >>> import tempfile
        >>> with EventWriter(tempfile.mkdtemp()) as writer:
        ...     writer.metrics({"accuracy": 0.5, "global_step": 20}, step=20)
        """
        written = [
            summary_value
            for name, value in values.items()
            if value is not None and name != "global_step"
            for summary_value in _metric(name, value)
        ]
        self._write_values(written, step)

    def text(self, tag: str, string: str, step: int) -> None:
        """Writes a text, which TensorBoard shows in its text tab.

        Args:
            tag: The name of the text.
            string: The text, which TensorBoard renders as Markdown.
            step: The global step that it belongs to.

        Example:

        >>> import tempfile
        >>> with EventWriter(tempfile.mkdtemp()) as writer:
        ...     writer.text("checkpoint_path", "model.ckpt-20", step=20)
        """
        from tensorboard.compat.proto import summary_pb2
        from tensorboard.plugins.text import metadata
        from tensorboard.util import tensor_util

        value = summary_pb2.Summary.Value(
            tag=tag,
            tensor=tensor_util.make_tensor_proto(string),
            metadata=metadata.create_summary_metadata(
                display_name=None, description=None
            ),
        )
        self._write_values([value], step)

    def write(
        self,
        summary: bytes,
        step: int,
        wall_time: float | None = None,
    ) -> None:
        """Writes a serialized summary.

        Args:
            summary: A serialized `Summary` of `tensorboard.compat.proto`.
            step: The global step that they belong to.
            wall_time: The time in seconds since 1970. Defaults to the clock.

        Example:

        >>> import tempfile
        >>> from tensorboard.compat.proto import summary_pb2
        >>> value = summary_pb2.Summary.Value(tag="loss", simple_value=0.25)
        >>> summary = summary_pb2.Summary(value=[value]).SerializeToString()
        >>> with EventWriter(tempfile.mkdtemp()) as writer:
        ...     writer.write(summary, step=1)
        """
        if wall_time is None:
            wall_time = time.time()
        self._append(serialized(wall_time, int(step), summary))

    def session_start(self, step: int) -> None:
        """Marks the start of a run at a step, which TensorBoard recognizes.

        TensorBoard discards what it has read for this step and later ones, so
        that a run that continues at an older checkpoint has each step once. The
        counterpart of `FileWriter.add_session_log` with `SessionLog.START`.

        Args:
            step: The first global step of the run.

        Example:

        >>> import tempfile
        >>> with EventWriter(tempfile.mkdtemp()) as writer:
        ...     writer.session_start(step=1)
        ...     writer.scalars({"loss": 0.25}, step=1)
        """
        from tensorboard.compat.proto import event_pb2

        log = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        event = event_pb2.Event(wall_time=time.time(), step=step, session_log=log)
        self._append(event.SerializeToString())

    def _append(self, event: bytes) -> None:
        """Adds a serialized event to the file."""
        if not is_chief():
            return
        with self._lock:
            if self._file is None:
                self._file = self._new_file()
            self._file.waiting.append(event)
            flush_at_end(self)
            since = time.monotonic() - self._file.flushed_at
            if since >= self._flush_secs or len(self._file.waiting) > self._max_queue:
                self._flush()

    def flush(self) -> None:
        """Makes all written events readable by other programs.

        Example:

        >>> import tempfile
        >>> writer = EventWriter(tempfile.mkdtemp())
        >>> writer.scalars({"loss": 0.25}, step=1)
        >>> writer.flush()
        """
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Flushes and closes the event file.

        Example:

        >>> import os, tempfile
        >>> writer = EventWriter(tempfile.mkdtemp())
        >>> writer.scalars({"loss": 0.25}, step=1)
        >>> writer.close()
        >>> len(os.listdir(writer.logdir))
        1
        """
        with self._lock:
            if self._file is not None:
                self._flush()
                self._close_file.detach()
                file, self._file = self._file, None
                file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _write_values(
        self,
        values: "list[Summary.Value]",
        step: int,
        wall_time: float | None = None,
    ) -> None:
        from tensorboard.compat.proto import summary_pb2

        if values:
            summary = summary_pb2.Summary(value=values)
            self.write(summary.SerializeToString(), step, wall_time)

    def _new_file(self) -> EventFile:
        file = EventFile(self._logdir, self._suffix)
        # A writer without references also writes its events, at the latest when
        # Python exits.
        close = functools.partial(_closed, file)
        if paths.is_url(self._logdir):
            close = functools.partial(close_soon, close)
        self._close_file = weakref.finalize(self, close)
        return file

    def _flush(self) -> None:
        if self._file is None or not self._file.waiting:
            return
        try:
            self._file.flush()
        except FileNotFoundError:
            self._close_file.detach()
            deleted, self._file = self._file, self._new_file()
            self._file.waiting.extend(deleted.waiting)
            self._file.flush()


def _closed(file: EventFile) -> None:
    """Closes the file of a writer without references."""
    try:
        file.close()
    except Exception as error:
        _logger.warning(
            "Events are lost, because their file cannot be written: %s", error
        )


_shared_writers: dict[tuple[Any, ...], EventWriter] = {}


def _number(tag: str, value: Any) -> float:
    try:
        return float(np.asarray(value).item())
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The scalar {tag!r} must be one number. Received: "
            f"{shown(value)}. Reduce an array first, for example to its mean."
        ) from error


def _scalar(tag: str, number: float) -> "Summary.Value":
    from tensorboard.compat.proto import summary_pb2

    return summary_pb2.Summary.Value(tag=tag, simple_value=number)


def _metric(name: str, value: Any) -> "list[Summary.Value]":
    if isinstance(value, int | float | np.integer | np.floating):
        return [_scalar(name, float(value))]
    if isinstance(value, np.ndarray):
        return _tensor(name, value)
    if isinstance(value, bytes):
        return _parsed(name, value)
    _warn_left_out(name, f"a {type(value).__name__} is not supported")
    return []


def _tensor(name: str, array: np.ndarray) -> "list[Summary.Value]":
    from tensorboard.compat.proto import summary_pb2
    from tensorboard.util import tensor_util

    try:
        tensor = tensor_util.make_tensor_proto(array)
    except (TypeError, ValueError) as error:
        _warn_left_out(name, error)
        return []
    return [summary_pb2.Summary.Value(tag=name, tensor=tensor)]


def _parsed(name: str, serialized: bytes) -> "list[Summary.Value]":
    from google.protobuf import message
    from tensorboard.compat.proto import summary_pb2

    try:
        values = list(summary_pb2.Summary.FromString(serialized).value)
    except message.DecodeError as error:
        _warn_left_out(name, error)
        return []
    for i, value in enumerate(values):
        value.tag = f"{name}/{i}"
    return values


def _warn_left_out(name: str, reason: object) -> None:
    _logger.warning("The metric %r is not written to the event file: %s.", name, reason)
