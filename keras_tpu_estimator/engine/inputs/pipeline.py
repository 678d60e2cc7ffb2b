"""From a user's `input_fn` to stacked steps on the host."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Self

from keras_tpu_estimator.engine.inputs.batch import StackedSteps
from keras_tpu_estimator.engine.inputs.checks import check_range
from keras_tpu_estimator.engine.inputs.input_reader import InputReader
from keras_tpu_estimator.engine.inputs.position import (
    Position,
    RestorePoint,
    RestorePoints,
    StepRecipe,
)
from keras_tpu_estimator.engine.inputs.request import InputRequest
from keras_tpu_estimator.engine.inputs.stacking import even_share
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.types import InputFn

_logger = logging.getLogger("keras_tpu_estimator")

# Of a call that is over by then, no state is saved: batches are counted.
_DELAY_SECS = 5.0
_BATCH_SIZES = {
    ModeKeys.TRAIN: "train_batch_size",
    ModeKeys.EVAL: "eval_batch_size",
    ModeKeys.PREDICT: "predict_batch_size",
}


class Pipeline:
    """The steps of one call, read from a user's `input_fn`.

    Args:
        input_fn: The user's function. It is called here, once for each of the
            plan's calls.
        start: Where to read on, if not at the beginning. Defaults to `None`.
        is_kept: Whether `position` will be asked for. Defaults to `False`.

    Raises:
        TypeError: It returns what the plan does not allow.
    """

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
        self._recipe = StepRecipe.of(request.plan)
        self._step = 0
        # Steps of earlier runs, known when the first batch is there.
        self._before = 0
        self._start = start
        self._is_restored = False
        difference = start and start.what_differs(self._recipe)
        if difference:
            self._start = None
            _warn_of_beginning(f"the run before had {difference}")
        if self._start and self._start.is_dealt_anew(self._recipe):
            _logger.warning(
                "The input was read by %d calls of input_fn, and is read by %d "
                "now: steps are counted. That is right if input_fn deals "
                "examples to its calls in turn, as Dataset.shard does; "
                "otherwise some are used again, and others missed.",
                self._start.recipe.calls,
                self._recipe.calls,
            )
        self._open(
            self._start.restore_point_for(self._recipe)
            if self._start
            else RestorePoint()
        )

    @property
    def is_whole(self) -> bool:
        """Whether each host reads the batches of all."""
        return self._request.plan.is_whole

    @property
    def is_single(self) -> bool:
        """Whether the input is arrays, which are one batch."""
        return self._reader.is_single

    def peek(self) -> StackedSteps | None:
        """The first steps, where others are to be passed over, or `None`.

        Raises:
            Exception: As in `take`.
        """
        with self._noted():
            return self._begin()

    def take(self, steps: int) -> StackedSteps | None:
        """Up to so many steps, stacked; `None` at the end of the input.

        The steps of one batch have equal shapes: a smaller batch comes by
        itself.

        Raises:
            Exception: Errors of the user's pipeline come as themselves.
        """
        with self._noted():
            if self._start is not None:
                self._read_on(self._start)
                self._start = None
            if self._step:
                # Not before the first batch, which others wait for.
                self._restore_points.keep(self._reader.restore_point)
            stacked = self._reader.steps.take(steps)
            if stacked is not None:
                check_range(stacked)
        self._step += 0 if stacked is None else stacked.steps
        return stacked

    def keep_together(self, like: StackedSteps, steps: int) -> None:
        """Has steps that are taken one by one lie in stacks, without labels.

        Args:
            like: One step with the features of those that are stacked.
            steps: The number of steps in a stack.
        """
        self._reader.steps.keep_together(like, steps)

    def room(self, like: StackedSteps) -> int:
        """Returns how many steps a device program has room for.

        Args:
            like: Steps of the same size.
        """
        request = self._request
        return even_share(request.room, like.step_bytes, request.stack_size)

    def position(self, steps: int) -> Position:
        """Where the input is for who has used some of the steps taken.

        Args:
            steps: How many of this pipeline's steps have been used.
        """
        steps += self._before
        return Position(steps, self._recipe, self._restore_points.newest(steps))

    def close(self) -> None:
        """Closes the user's generators."""
        self._reader.close()
        self._input_fn = lambda params: ()  # The user's may hold them, too.

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
    def _noted(self) -> Iterator[None]:
        """Says of an error of the user's pipeline where it came from."""
        try:
            yield
        except Exception as error:
            error.add_note(
                f"This happened while input_fn was read in mode "
                f"{self._request.mode!r}, after {self._step} steps."
            )
            self._explain(error)
            raise

    def _explain(self, error: Exception) -> None:
        """Says which argument is missing if `input_fn` reads a batch size."""
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

    def _begin(self) -> StackedSteps | None:
        """Goes to the restore point; what is passed over begins with these."""
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
        except Exception as error:  # The user's code, or TensorFlow.
            _logger.warning(
                "The state that the input was in could not be restored, so "
                "its batches are counted: a shuffle without a seed repeats "
                "some examples and misses others. %s: %s",
                type(error).__name__,
                error,
            )
            self._reopen()

    def _read_on(self, start: Position) -> None:
        """Goes to where an earlier run has come to."""
        self._begin()
        missing = start.steps - self._opened_at
        skipped = self._reader.steps.skip(missing)
        if skipped < missing:
            _warn_of_beginning(
                f"it ends after {self._opened_at + skipped} steps, and "
                f"{start.steps} had been made"
            )
            self._reopen()
            return
        self._before = start.steps
        _logger.info(
            "The input goes on after %d steps, %s.",
            start.steps,
            _how(self._opened_at, missing),
        )


def _how(saved: int, again: int) -> str:
    """How an input has come to where it goes on."""
    if not saved:
        return "which were read again: no state of it was saved"
    if not again:
        return "from its saved state"
    return f"from its saved state after {saved} and {again} more, read again"


def _warn_of_beginning(reason: str) -> None:
    _logger.warning(
        "The input is read from the beginning, so that examples which have "
        "been used are used again: %s.",
        reason,
    )
