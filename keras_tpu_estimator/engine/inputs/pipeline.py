"""The input pipeline from `input_fn` to stacked steps, in a thread that runs ahead."""

import collections
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, Self, TypeVar

from keras_tpu_estimator.base.common.ledger import waiting_for_input
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import InputFn
from keras_tpu_estimator.engine.inputs import datasets
from keras_tpu_estimator.engine.inputs.checks import check_range
from keras_tpu_estimator.engine.inputs.input_reader import InputReader
from keras_tpu_estimator.engine.inputs.position import (
    Position,
    RestorePoint,
    RestorePoints,
    StepRecipe,
)
from keras_tpu_estimator.engine.inputs.request import InputRequest
from keras_tpu_estimator.engine.inputs.stacking import Stack, even_share

_logger = logging.getLogger("keras_tpu_estimator")

# No state is saved for a shorter call. Its batches are counted.
_DELAY_SECS = 5.0
_BATCH_SIZES = {
    ModeKeys.TRAIN: "train_batch_size",
    ModeKeys.EVAL: "eval_batch_size",
    ModeKeys.PREDICT: "predict_batch_size",
}


class Pipeline:
    """The steps of one call, from the position `start` if it is set.

    The constructor makes the plan's calls, and raises `TypeError` if the plan does not
    allow a returned value. `is_kept` means that `position` will be called.
    """

    @waiting_for_input
    def __init__(
        self,
        input_fn: InputFn,
        request: InputRequest,
        start: Position | None = None,
        is_kept: bool = False,
    ):
        self._input_fn = input_fn
        self._request = request
        self._is_kept = is_kept
        self._recipe = StepRecipe.from_plan(request.plan)
        self._step = 0
        # The steps of earlier runs, known after the first batch.
        self._before = 0
        self._start = start
        self._is_restored = False
        difference = start and start.difference_from(self._recipe)
        if difference:
            self._start = None
            _warn_of_beginning(f"the earlier run had {difference}")
        if self._start and self._start.is_redistributed(self._recipe):
            _logger.warning(
                "The number of calls of input_fn has changed from %d to %d, so "
                "that steps are counted. This is exact if input_fn distributes "
                "examples to its calls in turn, as Dataset.shard does. Otherwise "
                "some examples are repeated, and others are missed.",
                self._start.recipe.calls,
                self._recipe.calls,
            )
        self._open(
            self._start.restore_point_for(self._recipe)
            if self._start
            else RestorePoint()
        )

    @property
    def is_replicated(self) -> bool:
        """Whether each host reads the batches of all hosts."""
        return self._request.plan.is_replicated

    @property
    def is_single(self) -> bool:
        """Whether the input is a single batch of arrays."""
        return self._reader.is_single

    @waiting_for_input
    def peek(self) -> Stack | None:
        """Returns the first steps if steps must be skipped, or else `None`."""
        with self._with_notes():
            return self._begin()

    def take(self, steps: int) -> Stack | None:
        """Returns up to `steps` steps of equal shapes, or `None` at the end."""
        with self._with_notes():
            if self._start is not None:
                self._continue_from(self._start)
                self._start = None
            if self._step:
                # Other threads wait for the first batch.
                self._restore_points.add(self._reader.restore_point)
            stack = self._reader.steps.take(steps)
            if stack is not None:
                check_range(stack)
        self._step += 0 if stack is None else stack.steps
        return stack

    def keep_together(self, like: Stack, steps: int) -> None:
        """Stores steps that are taken one by one in stacks, as `Stacker` does."""
        self._reader.steps.keep_together(like, steps)

    def capacity(self, like: Stack) -> int:
        """Returns the number of such steps that a device program has room for."""
        request = self._request
        return even_share(request.capacity, like.step_bytes, request.stack_size)

    def position(self, steps: int) -> Position:
        """Returns the position after that many of this pipeline's steps were used."""
        steps += self._before
        return Position(steps, self._recipe, self._restore_points.newest(steps))

    @waiting_for_input
    def close(self) -> None:
        """Closes the user's generators."""
        self._reader.close()
        self._input_fn = lambda params: ()  # The user's may refer to them.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open(self, start: RestorePoint) -> None:
        self._restore_points = RestorePoints(
            start, self._is_kept, self._request.state_max_bytes, _DELAY_SECS
        )
        try:
            self._reader = InputReader(self._input_fn, self._request, start)
        except KeyError as error:
            self._explain(error)
            raise
        self._opened_at = start.steps

    @contextlib.contextmanager
    def _with_notes(self) -> Iterator[None]:
        """Adds the mode and the step to errors of the user's pipeline."""
        try:
            yield
        except Exception as error:
            error.add_note(
                f"This happened while reading input_fn in mode "
                f"{self._request.mode!r}, after {self._step} steps."
            )
            self._explain(error)
            raise

    def _explain(self, error: Exception) -> None:
        """Adds a note about the missing argument if `input_fn` reads a batch size."""
        is_set = self._request.plan.calls[0].batch_size is not None
        if is_set or repr(error) != "KeyError('batch_size')":
            return
        name = _BATCH_SIZES[self._request.mode]
        error.add_note(
            f"`params` has no 'batch_size' because the estimator has no "
            f"`{name}`. Pass it to the estimator, as in `{name}=64`."
        )

    def _reopen(self) -> None:
        self._reader.close()
        self._open(RestorePoint())

    def _begin(self) -> Stack | None:
        """Restores the state, and returns the first of the steps to skip."""
        if self._start is None:
            return None
        if not self._is_restored:
            self._is_restored = True
            self._restore()
        if self._start.steps == self._opened_at:
            return None
        return self._reader.steps.peek()

    def _restore(self) -> None:
        try:
            self._reader.restore()
        except Exception as error:  # From the user's code or TensorFlow.
            _logger.warning(
                "The iterator state could not be restored, so that batches are "
                "counted instead. A shuffle without a seed repeats some examples "
                "and misses others. %s: %s",
                type(error).__name__,
                error,
            )
            self._reopen()

    def _continue_from(self, start: Position) -> None:
        """Skips to the position of an earlier run."""
        self._begin()
        missing = start.steps - self._opened_at
        skipped = self._reader.steps.skip(missing)
        if skipped < missing:
            _warn_of_beginning(
                f"it ends after {self._opened_at + skipped} steps, but the earlier "
                f"run had used {start.steps}"
            )
            self._reopen()
            return
        self._before = start.steps
        _logger.info(
            "The input continues after %d steps, %s.",
            start.steps,
            _how(self._opened_at, missing),
        )


def _how(saved: int, again: int) -> str:
    """Returns the way in which the input reached its position, as a text."""
    if not saved:
        return "which were re-read because no iterator state was saved"
    if not again:
        return "from its saved state"
    return f"from its saved state after {saved} and {again} more, which were re-read"


def _warn_of_beginning(reason: str) -> None:
    _logger.warning(
        "The input is read from the beginning, so that used examples are repeated: %s.",
        reason,
    )


T = TypeVar("T")

# The time that `close` waits for a producer in the user's code.
_PATIENCE_SECS = 5.0
# The interval at which a waiting consumer checks for cancellation.
_POLL_SECS = 0.1


class Infeed(Generic[T]):
    """An iterator over the results of a function, which a thread calls ahead.

    An error of `produce` is raised after the items before it.

    Args:
        produce: Returns the next item, or `None` at the end.
        depth: The number of items that may wait, or a function of the newest
            item that returns it.
        is_cancelled: Whether to end instead of waiting for an item. It is
            called repeatedly.
        give_up: Called by `close`, so that `produce` stops waiting for other
            processes.
        finish: Called with each item, by the thread that takes it. Its result
            takes the place of the item.
    """

    def __init__(
        self,
        produce: Callable[[], T | None],
        depth: int | Callable[[T], int] = 2,
        is_cancelled: Callable[[], bool] = lambda: False,
        give_up: Callable[[], None] = lambda: None,
        finish: Callable[[T], T] = lambda item: item,
    ):
        self._produce = produce
        self._give_up = give_up
        self._finish = finish
        self._is_cancelled = is_cancelled
        self._depth = depth
        self._ready: collections.deque[T] = collections.deque()
        self._changed = threading.Condition()
        self._is_over = False
        self._awaited = 1
        self._waited = 0.0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="infeed", daemon=True)
        self._thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return self._finish(self._next())

    def _next(self) -> T:
        with waiting_for_input, self._changed:
            since = time.monotonic()
            while not self._changed.wait_for(
                lambda: self._ready or self._is_over, _POLL_SECS
            ):
                if self._is_cancelled():
                    raise StopIteration
            self._waited += time.monotonic() - since
            if self._ready:
                item = self._ready.popleft()
                self._changed.notify_all()
                return item
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        raise StopIteration

    @property
    def is_ready(self) -> bool:
        """Whether `take_ready` returns an item. Once true, it remains true."""
        return bool(self._ready)

    def take_ready(
        self, is_requested: Callable[[T], bool] = lambda item: True
    ) -> T | None:
        """Returns the next item if it is ready and requested, or else `None`."""
        with self._changed:
            if not self._ready or not is_requested(self._ready[0]):
                return None
            self._changed.notify_all()
            item = self._ready.popleft()
        return self._finish(item)

    def has_ready(self, items: int) -> bool:
        """Returns whether that many items are ready, or all remaining ones."""
        return len(self._ready) >= items or self._is_over

    def gather(self, items: int, gap_secs: float) -> bool:
        """Waits for items while they arrive, and returns whether none did.

        The gaps are at most `gap_secs`. Fewer items suffice at the end of the input.
        """
        begun, is_vain = len(self._ready), False
        with self._changed:
            # The thread should not wake the caller for each item.
            self._awaited = items
            while (ready := len(self._ready)) < items and not self._is_over:
                self._changed.wait(gap_secs)
                if len(self._ready) == ready:
                    is_vain = ready == begun
                    break
            self._awaited = 1
        return is_vain

    def take_waited_secs(self) -> float:
        """Returns the time spent waiting for items since the last call."""
        waited, self._waited = self._waited, 0.0
        return waited

    def close(self) -> None:
        """Ends the thread, and discards waiting items."""
        with self._changed:
            self._is_over = True
            self._ready.clear()
            self._changed.notify_all()
        self._give_up()
        with waiting_for_input:
            self._thread.join(_PATIENCE_SECS)
        if self._thread.is_alive():
            datasets.leave(self._thread)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            while not self._is_over:
                item = self._produce()
                if item is None:
                    break
                self._enqueue(item)
        except BaseException as error:  # `__next__` raises it again.
            self._error = error
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _enqueue(self, item: T) -> None:
        depth = self._depth(item) if callable(self._depth) else self._depth
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < depth or self._is_over)
            if not self._is_over:
                self._ready.append(item)
                if len(self._ready) >= self._awaited:
                    self._changed.notify_all()
