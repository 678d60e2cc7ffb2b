"""Where this thread's summaries go, at which step, and whether at all."""

import abc
import contextlib
import contextvars
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from keras_tpu_estimator.summary.kinds import Summary

Condition = bool | Callable[[], Any] | None


class Sink(abc.ABC):
    """What takes summaries.

    Attributes:
        is_fixed: Whether no other may take its place.
    """

    is_fixed = False

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


class _Recording(NamedTuple):
    """The state of a thread.

    Attributes:
        sink: Where summaries go, or `None`.
        step: The step of those that have none of their own.
        condition: Whether they are recorded, or a function that knows.
        at_end: What is done when the loop's host calls are over, or `None`
            outside of them.
    """

    sink: Sink | None = None
    step: Any = None
    condition: Condition = True
    at_end: set[Callable[[], None]] | None = None


_NOWHERE = _Recording()
_current: contextvars.ContextVar[_Recording] = contextvars.ContextVar(
    "recording", default=_NOWHERE
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
    now = _current.get()
    if now.sink is None or not _is_met(now.condition):
        return False
    return now.sink.take(summary, data, now.step if step is None else step)


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
    return _changed(condition=condition)


def going_to(
    sink: Sink, step: Any = None
) -> contextlib.AbstractContextManager[None]:
    """Makes a sink the default of this thread, and perhaps a step.

    Raises:
        ValueError: There is one that may not be replaced.
    """
    now = _current.get()
    if now.sink is not None and now.sink.is_fixed:
        raise ValueError(
            "A summary writer was made the default inside a model_fn. Expected "
            "none: what a model_fn records goes into model_dir, or into "
            "eval_dir in evaluation. Leave the writer out, or move this code "
            "into `host_call`."
        )
    # Without a step of its own, one that is set inside outlives the block.
    return _changed(sink=sink, **({} if step is None else {"step": step}))


def only_to(sink: Sink) -> contextlib.AbstractContextManager[None]:
    """Forgets all settings, and sends summaries to one sink."""
    return _changed(sink=sink, step=None, condition=True)


@contextlib.contextmanager
def host_calls() -> Iterator[None]:
    """Surrounds the host calls of a loop, each of which sets its step."""
    at_end: set[Callable[[], None]] = set()
    try:
        with _changed(step=None, at_end=at_end):
            yield
    finally:
        for do in at_end:
            do()


def at_end(do: Callable[[], None]) -> None:
    """Does something at the end of the loop's host calls; elsewhere at once.

    Args:
        do: It is done once, however often it is passed.
    """
    later = _current.get().at_end
    if later is None:
        do()
    else:
        later.add(do)


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
    return _current.get().step


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
    _current.set(_current.get()._replace(step=step))


@contextlib.contextmanager
def _changed(**changes: Any) -> Iterator[None]:
    before = _current.get()
    _current.set(before._replace(**changes))
    try:
        yield
    finally:
        # What was not changed here may have been set for longer.
        restored = {name: getattr(before, name) for name in changes}
        _current.set(_current.get()._replace(**restored))


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
