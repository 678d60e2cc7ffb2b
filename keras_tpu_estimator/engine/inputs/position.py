"""Where in its input a run of training is."""

import collections
import dataclasses
import logging
import time
from collections.abc import Callable

from keras_tpu_estimator.engine.inputs.deployment import InputPlan
from keras_tpu_estimator.engine.inputs.packing import Packed


@dataclasses.dataclass(frozen=True)
class RestorePoint:
    """A place from which an input can be read on.

    Attributes:
        steps: How many steps are before it. Defaults to none.
        stacked: How many batches `tf.data` was reading at once, or 0.
        states: The states of what the calls of `input_fn` returned. Defaults
            to `None`, which is right for the beginning alone.
    """

    steps: int = 0
    stacked: int = 0
    states: Packed | None = None


@dataclasses.dataclass(frozen=True)
class StepRecipe:
    """What makes steps of two runs comparable.

    Attributes:
        batch_size: Examples in a step, or `None` if nobody knows.
        calls: How many calls of `input_fn` feed it, over all hosts.
        call_size: Examples in a batch of one call, or `None`.
    """

    batch_size: int | None
    calls: int
    call_size: int | None

    @classmethod
    def of(cls, plan: InputPlan) -> "StepRecipe":
        """That of the calls of `input_fn` that a host makes."""
        calls, size = plan.calls[0].total, plan.calls[0].batch_size
        parts = plan.batches_per_call * calls
        return cls(None if size is None else size * parts, calls, size)


@dataclasses.dataclass(frozen=True)
class Position:
    """Where a run of training has come to in its input.

    Attributes:
        steps: How many steps it has made since `input_fn` was called.
        restore_point: A place at this position or before it.

    Example:

    >>> position = Position(8, StepRecipe(64, calls=1, call_size=64))
    >>> position.what_differs(StepRecipe(32, calls=1, call_size=32))
    'batches of 64 examples, now 32'
    """

    steps: int
    recipe: StepRecipe
    restore_point: RestorePoint = RestorePoint()

    def what_differs(self, recipe: StepRecipe) -> str | None:
        """Why steps cannot be counted any more, or `None` if they can."""
        old = self.recipe
        if old.batch_size != recipe.batch_size:
            return f"batches of {old.batch_size} examples, now {recipe.batch_size}"
        return None

    def is_dealt_anew(self, recipe: StepRecipe) -> bool:
        """Whether other calls of `input_fn` share the same batches now."""
        return self.recipe.calls != recipe.calls

    def restore_point_for(self, recipe: StepRecipe) -> RestorePoint:
        """Where to start reading, with batches that may be cut otherwise."""
        # A state may hold batches that were read ahead, of the old size, and
        # belongs to one of so many calls.
        is_same = (self.recipe.call_size, self.recipe.calls) == (
            recipe.call_size,
            recipe.calls,
        )
        return self.restore_point if is_same else RestorePoint()


_logger = logging.getLogger("keras_tpu_estimator")

# From here on a state is told, which each checkpoint has beside it.
_LARGE = 2**24
# Of the time of reading, at most one part in so many is for restore points.
_SHARE = 20


class RestorePoints:
    """The restore points of an input that is read ahead of its use.

    Each checkpoint asks for the newest one that is not ahead of it. That has
    one more made soon, for the checkpoint to come, by the thread that reads.
    So a restore point costs little, and is not far from where it is used.

    Args:
        first: The place at which reading starts.
        is_wanted: Whether to make one soon. Defaults to `False`.
        max_bytes: None is made of a state that is larger, such as a shuffle
            buffer of images; with 0 none at all. Defaults to any.
        delay_secs: None is made in the first so many seconds. Defaults to 0.
        clock: Returns the time in seconds. Defaults to `time.monotonic`.

    Example:

    >>> restore_points = RestorePoints(RestorePoint(), is_wanted=True)
    >>> for steps in (8, 16):
    ...     restore_points.keep(lambda: RestorePoint(steps))
    >>> [restore_points.newest(steps).steps for steps in (4, 8, 20)]
    [0, 8, 8]
    """

    def __init__(
        self,
        first: RestorePoint,
        is_wanted: bool = False,
        max_bytes: int | None = None,
        delay_secs: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        # One thread adds on the right, and the other removes on the left.
        self._kept = collections.deque([first])
        self._is_wanted = is_wanted
        self._is_possible = max_bytes != 0
        self._max_bytes = max_bytes
        self._is_told = False
        self._clock = clock
        self._not_before = clock() + delay_secs

    def newest(self, steps: int) -> RestorePoint:
        """The newest one at a step or before it; older ones are dropped.

        Args:
            steps: A step, not before that of an earlier call.
        """
        self._is_wanted = True
        while len(self._kept) > 1 and self._kept[1].steps <= steps:
            self._kept.popleft()
        return self._kept[0]

    def keep(self, make: Callable[[], RestorePoint | None]) -> None:
        """Makes a restore_point if it is time for one.

        Args:
            make: Returns one, or `None` if there is none to be had.
        """
        start = self._clock()
        if not (self._is_wanted and self._is_possible):
            return
        if start < self._not_before:
            return
        self._is_wanted = False
        made = _made(make)
        self._is_possible = made is not None and self._may_be_saved(made)
        made = made if self._is_possible else None
        if made is not None and made.steps > self._kept[-1].steps:
            self._kept.append(made)
        end = self._clock()
        self._not_before = end + _SHARE * (end - start)

    def _may_be_saved(self, made: RestorePoint) -> bool:
        """Whether a restore point is not too large; a large one is told."""
        size = 0 if made.states is None else made.states.size
        if self._max_bytes is not None and size > self._max_bytes:
            _logger.warning(
                "The state of the input takes %d MiB, more than "
                "RunConfig(input_state_max_bytes=%d), and is not saved. Its "
                "batches are counted, and read again by who resumes; so a "
                "shuffle without a seed would then repeat some examples and "
                "miss others.",
                size >> 20,
                self._max_bytes,
            )
            return False
        if size > _LARGE and not self._is_told:
            self._is_told = True
            _logger.info(
                "The state of the input takes %d MiB beside each checkpoint: "
                "what input_fn shuffles or reads ahead is in it. "
                "RunConfig(input_state_max_bytes=...) sets a limit, beyond "
                "which batches are counted.",
                size >> 20,
            )
        return True


def _made(make: Callable[[], RestorePoint | None]) -> RestorePoint | None:
    try:
        return make()
    except Exception as error:  # The user's code, or TensorFlow.
        _logger.info(
            "The input cannot tell its state, so its batches are counted, and "
            "read again by who resumes: %s: %s",
            type(error).__name__,
            error,
        )
        return None
