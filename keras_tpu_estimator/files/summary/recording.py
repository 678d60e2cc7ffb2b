"""The functions that record summaries, and the destination of the current thread."""

import abc
import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

import jax
import numpy as np

from keras_tpu_estimator.files.summary.event_writer import EventWriter
from keras_tpu_estimator.files.summary.kinds import (
    Audio,
    Histogram,
    Image,
    Scalar,
    Summary,
    Text,
)

Condition = bool | Callable[[], Any] | None


class Sink(abc.ABC):
    """A destination of summaries.

    Attributes:
        events: The event writer behind it, if known.
    """

    events: EventWriter | None = None

    def replaced_by(self, sink: "Sink") -> "Sink":
        """Returns the destination when another sink becomes the default."""
        return sink

    @abc.abstractmethod
    def take(self, summary: Summary, data: Any, step: Any) -> bool:
        """Receives one summary.

        Args:
            summary: The summary.
            data: The data it was called with.
            step: The step, or `None`.

        Returns:
            Whether it is, or will be, written.
        """


S = TypeVar("S", bound=Sink)

# These variables belong to a thread: the destination of summaries, the step of
# those without one, whether they are recorded, and the functions to call after
# the host calls of a loop, or `None` outside of these.
_sink: ContextVar[Sink | None] = ContextVar("sink", default=None)
_step: ContextVar[Any] = ContextVar("step", default=None)
_condition: ContextVar[Condition] = ContextVar("condition", default=True)
_at_end: ContextVar[set[Callable[[], None]] | None] = ContextVar("at_end", default=None)


def record(summary: Summary, data: Any, step: Any) -> bool:
    """Passes a summary to the current sink; returns whether it is recorded."""
    sink = _sink.get()
    if sink is None or not _is_met(_condition.get()):
        return False
    return sink.take(summary, data, _step.get() if step is None else step)


def record_if(
    condition: Condition,
) -> contextlib.AbstractContextManager[None]:
    """Records the summaries in a `with` block only on a condition.

    Outside of such a block they are recorded. The innermost block decides.

    Args:
        condition: A boolean, or a function without arguments that is called at
            each summary. In a `model_fn` it must be known while the function is
            traced, as `mode` is.

    Raises:
        ValueError: In a `model_fn` the condition is a tensor.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import tempfile
    >>> writer = kte.summary.create_file_writer(tempfile.mkdtemp())
    >>> with writer.as_default():
    ...     for step in range(3):
    ...         with kte.summary.record_if(step % 2 == 0):
    ...             print(kte.summary.scalar("loss", 0.5, step=step))
    True
    False
    True

    Reference: `tf.summary.record_if`.
    """
    return _Set(_condition, condition)


class AsDefault(Generic[S]):
    """Makes a sink, and optionally a step, the defaults of this thread.

    `flush` is called at the end of the `with` block, or of the loop's host calls. If
    `step` is `None`, the current step remains.
    """

    # A class is faster than a generator; there may be many thousand a second.
    __slots__ = ("_flush", "_sink", "_sink_before", "_step", "_step_before")

    def __init__(self, sink: S, step: Any, flush: Callable[[], None]):
        self._sink = sink
        self._step = step
        self._flush = flush

    def __enter__(self) -> S:
        self._sink_before = before = _sink.get()
        sink = self._sink if before is None else before.replaced_by(self._sink)
        _sink.set(sink)
        if self._step is not None:
            self._step_before = _step.get()
            _step.set(self._step)
        return self._sink

    def __exit__(self, *exception: object) -> None:
        # Without a step here, a step that was set inside the block stays.
        if self._step is not None:
            _step.set(self._step_before)
        _sink.set(self._sink_before)
        _at_end_or_now(self._flush)


@contextlib.contextmanager
def only_to(sink: Sink) -> Iterator[None]:
    """Resets all settings, and sends summaries to one sink."""
    with _Set(_sink, sink), _Set(_step, None), _Set(_condition, True):
        yield


@contextlib.contextmanager
def host_calls() -> Iterator[None]:
    """Surrounds the host calls of a loop, each of which sets its step."""
    later: set[Callable[[], None]] = set()
    try:
        with _Set(_step, None), _Set(_at_end, later):
            yield
    finally:
        for do in later:
            do()


def get_step() -> Any:
    """Returns the default step of summaries on this thread.

    Returns:
        In a `host_call` the number of the step, counted from 1; otherwise the
        step from `set_step` or `as_default`, or `None`.

    Example:

    >>> from keras_tpu_estimator.summary import experimental
    >>> experimental.get_step() is None
    True

    Reference: `tf.summary.experimental.get_step`.
    """
    return _step.get()


def set_step(step: Any) -> None:
    """Sets the default step of summaries on this thread.

    Args:
        step: An integer, or `None` for no default.

    Example:

    >>> from keras_tpu_estimator.summary import experimental
    >>> experimental.set_step(10)
    >>> experimental.get_step()
    10
    >>> experimental.set_step(None)

    Reference: `tf.summary.experimental.set_step`.
    """
    _step.set(step)


class _Set:
    """Sets a variable of this thread during a `with` block."""

    __slots__ = ("_before", "_value", "_variable")

    def __init__(self, variable: ContextVar[Any], value: Any):
        self._variable = variable
        self._value = value

    def __enter__(self) -> None:
        self._before = self._variable.get()
        self._variable.set(self._value)

    def __exit__(self, *exception: object) -> None:
        self._variable.set(self._before)


def _at_end_or_now(do: Callable[[], None]) -> None:
    later = _at_end.get()
    if later is None:
        do()
    else:
        later.add(do)


def _is_met(condition: Condition) -> bool:
    if condition is True:
        return True
    value = condition() if callable(condition) else condition
    if isinstance(value, jax.core.Tracer):
        raise ValueError(
            "The condition of `record_if` must be a boolean that is known "
            "while model_fn is traced. Received a tensor. Summaries of "
            "model_fn are written every `save_summary_steps`; to decide by "
            "values, record in `host_call`."
        )
    return value is None or bool(np.asarray(value))


def scalar(
    name: str, data: Any, step: Any = None, description: str | None = None
) -> bool:
    """Records a number, which TensorBoard plots over the steps.

    In a `model_fn` on several devices it is averaged over them.

    Args:
        name: Its tag.
        data: A number, or a real tensor without axes.
        step: The global step. Defaults to the step of the `host_call` or
            `model_fn`, or of the writer.
        description: A Markdown text that TensorBoard shows with it. Defaults to
            none.

    Returns:
        Whether it is recorded: a writer exists, and `record_if` allows it.

    Raises:
        ValueError: `data` is not one real number, or there is no step.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import tempfile
    >>> kte.summary.scalar("loss", 0.25, step=1)  # No writer.
    False
    >>> with kte.summary.create_file_writer(tempfile.mkdtemp()).as_default():
    ...     kte.summary.scalar("loss", 0.25, step=1)
    True

    Reference: `tf.summary.scalar`.
    """
    try:
        summary = _scalar(name, description)
    except TypeError:  # An unhashable name raises an error here.
        summary = Scalar(tag=name, description=description)
    return record(summary, data, step)


def histogram(
    name: str,
    data: Any,
    step: Any = None,
    buckets: int | None = None,
    description: str | None = None,
) -> bool:
    """Records the distribution of numbers.

    In a `model_fn` it includes the values of all devices, which count them.
    Values that are not finite are ignored.

    Args:
        name: Its tag.
        data: Real tensor of any shape.
        step: As in `scalar`.
        buckets: The number of buckets of equal width. Defaults to 30.
        description: As in `scalar`.

    Returns:
        Whether it is recorded.

    Raises:
        ValueError: An argument is wrong, or there is no step.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import numpy as np, tempfile
    >>> with kte.summary.create_file_writer(tempfile.mkdtemp()).as_default():
    ...     kte.summary.histogram("weights", np.eye(3), step=1, buckets=10)
    True

    Reference: `tf.summary.histogram`.
    """
    summary = Histogram(
        tag=name,
        description=description,
        buckets=30 if buckets is None else buckets,
    )
    return record(summary, data, step)


def image(
    name: str,
    data: Any,
    step: Any = None,
    max_outputs: int = 3,
    description: str | None = None,
) -> bool:
    """Records the first images of a batch.

    Args:
        name: Their tag.
        data: Tensor of shape `[images, height, width, channels]`: uint8, or
            floats, which are clipped to 0 (black) to 1. One channel is grey, 3
            are RGB; with 2 or 4 the last is the opacity.
        step: As in `scalar`.
        max_outputs: The number of images to record. Defaults to 3.
        description: As in `scalar`.

    Returns:
        Whether they are recorded.

    Raises:
        ValueError: An argument is wrong, or there is no step.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import numpy as np, tempfile
    >>> pixels = np.random.default_rng(0).random((8, 28, 28, 1))
    >>> with kte.summary.create_file_writer(tempfile.mkdtemp()).as_default():
    ...     kte.summary.image("digits", pixels, step=1)
    True

    Reference: `tf.summary.image`.
    """
    summary = Image(tag=name, description=description, max_outputs=max_outputs)
    return record(summary, data, step)


def text(
    name: str, data: Any, step: Any = None, description: str | None = None
) -> bool:
    """Records a text, which TensorBoard renders as Markdown.

    Args:
        name: Its tag.
        data: A string, or an array of strings, which is shown as a table. It
            must be a Python value: in a `model_fn` it is the same at each step.
        step: As in `scalar`.
        description: As in `scalar`.

    Returns:
        Whether it is recorded.

    Raises:
        ValueError: `data` is not a text, or there is no step.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import tempfile
    >>> with kte.summary.create_file_writer(tempfile.mkdtemp()).as_default():
    ...     kte.summary.text("about", "with *less* dropout", step=0)
    True

    Reference: `tf.summary.text`.
    """
    return record(Text.from_data(name, data, description), data, step)


def audio(
    name: str,
    data: Any,
    sample_rate: int,
    step: Any = None,
    max_outputs: int = 3,
    encoding: str | None = None,
    description: str | None = None,
) -> bool:
    """Records the first sounds of a batch.

    Args:
        name: Their tag.
        data: Floats of shape `[sounds, frames, channels]`, clipped to the range
            -1 to 1.
        sample_rate: Frames per second.
        step: As in `scalar`.
        max_outputs: The number of sounds to record. Defaults to 3.
        encoding: `"wav"` or `None`, which mean the same.
        description: As in `scalar`.

    Returns:
        Whether they are recorded.

    Raises:
        ValueError: An argument is wrong, or there is no step.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> import numpy as np, tempfile
    >>> wave = np.sin(np.arange(8000) * 0.3).reshape(1, 8000, 1)
    >>> with kte.summary.create_file_writer(tempfile.mkdtemp()).as_default():
    ...     kte.summary.audio("tone", wave, sample_rate=8000, step=1)
    True

    Reference: `tf.summary.audio`.
    """
    if encoding not in (None, "wav"):
        raise ValueError(f"`encoding` must be 'wav' or None. Received: {encoding!r}")
    summary = Audio(
        tag=name,
        description=description,
        sample_rate=sample_rate,
        max_outputs=max_outputs,
    )
    return record(summary, data, step)


@functools.lru_cache(maxsize=1024)
def _scalar(name: str, description: str | None) -> Scalar:
    return Scalar(tag=name, description=description)
