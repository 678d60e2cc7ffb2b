"""A timer for periodic actions."""

import itertools
import math
import time
from collections.abc import Callable, Iterable


class SecondOrStepTimer:
    """A timer that triggers after an interval of steps or seconds.

    It triggers at the first step, and never twice at the same step. The
    counterpart of `tf.compat.v1.train.SecondOrStepTimer`.

    Args:
        every_secs: Seconds, or `None`.
        every_steps: Steps, or `None`.
        clock: Returns the time in seconds. Defaults to `time.monotonic`.

    Raises:
        ValueError: Not exactly one of the intervals is given.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> timer = kte.hooks.SecondOrStepTimer(every_steps=10)
    >>> timer.should_trigger_for_step(3)
    True
    >>> timer.update_last_triggered_step(3)
    (None, None)
    >>> timer.should_trigger_for_step(12), timer.should_trigger_for_step(13)
    (False, True)
    """

    def __init__(
        self,
        every_secs: float | None = None,
        every_steps: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        if (every_secs is None) == (every_steps is None):
            raise ValueError(
                "Exactly one of `every_secs` and `every_steps` must be set. Received: "
                f"every_secs={every_secs}, every_steps={every_steps}. Set the other "
                "one to None."
            )
        self._every_secs = every_secs
        self._every_steps = math.inf if every_steps is None else every_steps
        self._clock = clock
        self._last: tuple[int, float] | None = None

    @property
    def counts_seconds(self) -> bool:
        """Whether it counts seconds, not steps."""
        return self._every_secs is not None

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns whether it triggers at a step."""
        if self._last is None:
            return True
        last_step, last_time = self._last
        if step == last_step:
            return False
        if self._every_secs is not None:
            return self._clock() >= last_time + self._every_secs
        return step >= last_step + self._every_steps

    def update_last_triggered_step(
        self, step: int, seconds_ago: float = 0.0
    ) -> tuple[float | None, int | None]:
        """Starts a new interval at this step.

        Args:
            step: The step.
            seconds_ago: Seconds since the step was complete. Defaults to 0.

        Returns:
            Seconds and steps of the interval that ends; `None` and `None` if it
            is the first.
        """
        last, self._last = self._last, (step, self._clock() - seconds_ago)
        if last is None:
            return None, None
        last_step, last_time = last
        return self._last[1] - last_time, step - last_step

    def last_triggered_step(self) -> int | None:
        """The step at which the interval began, or `None`."""
        return None if self._last is None else self._last[0]

    def reset(self) -> None:
        """Resets the interval, so that the next step triggers."""
        self._last = None

    def steps_from(self, first: int) -> Iterable[int]:
        """Returns the steps at which it triggers, given the first one.

        With an interval in seconds, it returns none.

        Args:
            first: The step at which the first interval begins.
        """
        if self._every_secs is not None:
            return ()
        return itertools.count(first, math.ceil(self._every_steps))

    def elapsed_since_last(self, step: int) -> tuple[int, float] | None:
        """Returns steps and seconds since the interval began, or `None`."""
        if self._last is None:
            return None
        last_step, last_time = self._last
        return step - last_step, self._clock() - last_time
