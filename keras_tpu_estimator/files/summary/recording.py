"""Where this thread's summaries go, at which step, and whether at all."""

import abc
import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any
from typing import Generic
from typing import TypeVar

import jax
import numpy as np

from keras_tpu_estimator.files.summary.event_writer import EventWriter
from keras_tpu_estimator.files.summary.kinds import Summary

Condition = bool | Callable[[], Any] | None


class Sink(abc.ABC):
    """What takes summaries.

    Attributes:
        events: What writes them, if it is known.
    """

    events: EventWriter | None = None

    def replaced_by(self, sink: "Sink") -> "Sink":
        """What takes summaries when a sink becomes the default after this."""
        return sink

    @abc.abstractmethod
    def take(self, summary: Summary, data: Any, step: Any) -> bool:
        """Takes one summary.

        Args:
            summary: What it is.
            data: The data it was called with.
            step: The step, or `None` if there is none.

        Returns:
            Whether it is, or will be, written.
        """


S = TypeVar("S", bound=Sink)

# Of this thread: where summaries go, the step of those that have none of their
# own, whether they are recorded, and what is done when the host calls of a loop
# are over, or `None` outside of them.
_sink: ContextVar[Sink | None] = ContextVar("sink", default=None)
_step: ContextVar[Any] = ContextVar("step", default=None)
_condition: ContextVar[Condition] = ContextVar("condition", default=True)
_at_end: ContextVar[set[Callable[[], None]] | None] = ContextVar(
    "at_end", default=None
)


def record(summary: Summary, data: Any, step: Any) -> bool:
    """Hands a summary to the current sink.

    Args:
        summary: What it is.
        data: Its data.
        step: Its step, or `None` for the default one.

    Returns:
        Whether it is recorded.
    """
    sink = _sink.get()
    if sink is None or not _is_met(_condition.get()):
        return False
    return sink.take(summary, data, _step.get() if step is None else step)


def record_if(
    condition: Condition,
) -> contextlib.AbstractContextManager[None]:
    """Records the summaries in a `with` block only on a condition.

    Outside of such a block they are recorded. An inner block decides alone.

    Args:
        condition: A boolean, or a function without arguments that is asked at
            each summary. In a `model_fn` it has to be known while the function
            is traced, as `mode` is.

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


class GoingTo(Generic[S]):
    """Makes a sink the default of this thread, and perhaps a step.

    Args:
        step: The step of those that have none of their own, or `None` for the
            one that there is.
        flush: Called at the end of the `with` block, or of the loop's host
            calls.
    """

    # A class, as there may be one on each of many thousand steps a second.
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
        # Without a step of its own, one that was set inside outlives it.
        if self._step is not None:
            _step.set(self._step_before)
        _sink.set(self._sink_before)
        _at_end_or_now(self._flush)


@contextlib.contextmanager
def only_to(sink: Sink) -> Iterator[None]:
    """Forgets all settings, and sends summaries to one sink."""
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
    """The step of summaries that are given none, on this thread.

    Returns:
        In a `host_call` the number of the step, counted from 1; elsewhere what
        `set_step` or `as_default` said, or else `None`.

    Example:

    >>> from keras_tpu_estimator.summary import experimental
    >>> experimental.get_step() is None
    True

    Reference: `tf.summary.experimental.get_step`.
    """
    return _step.get()


def set_step(step: Any) -> None:
    """Sets the step of summaries that are given none, on this thread.

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
    """Sets a variable of this thread for the time of a `with` block."""

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
            "The condition of `record_if` is a tensor of model_fn. Expected a "
            "boolean that is known while model_fn is traced. What model_fn "
            "records is written every `save_summary_steps`; to decide by "
            "values, record in `host_call`."
        )
    return value is None or bool(np.asarray(value))
