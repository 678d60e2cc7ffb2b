"""The position of training in its input, and its files beside checkpoints.

'model.ckpt-20.input.0f0f0f0f.zip' belongs to the 'model.ckpt-20.h5' of the same
save, and is written before it. The file of an earlier save of the step remains
until then. A checkpoint without such a file ends a call of `train`, or comes from
another program. With several hosts, each writes one:
'model.ckpt-20.input-1-of-4...'.
"""

import collections
import dataclasses
import logging
import time
from collections.abc import Callable

from keras_tpu_estimator.base.common.ledger import restoring
from keras_tpu_estimator.base.hosts.agreement import Hosts
from keras_tpu_estimator.base.storage.parsing import parsing
from keras_tpu_estimator.engine.inputs.deployment import InputPlan
from keras_tpu_estimator.engine.inputs.packing import (
    Packed,
    read_archive,
    write_archive,
)
from keras_tpu_estimator.files.directory.save_files import ResumeFiles, SaveFiles


@dataclasses.dataclass(frozen=True)
class RestorePoint:
    """A position, in steps, at which reading an input can continue.

    `stacked` is the number of batches that `tf.data` stacked, or 0. `states` are the
    iterator states of the calls of `input_fn`, or `None` at the beginning.
    """

    steps: int = 0
    stacked: int = 0
    states: Packed | None = None


@dataclasses.dataclass(frozen=True)
class StepRecipe:
    """The composition of a step, which makes steps of two runs comparable.

    Attributes:
        batch_size: The number of examples in a step, or `None` if unknown.
        calls: The number of calls of `input_fn` over all hosts.
        call_size: The number of examples in a batch of one call, or `None`.
    """

    batch_size: int | None
    calls: int
    call_size: int | None

    @classmethod
    def from_plan(cls, plan: InputPlan) -> "StepRecipe":
        """Returns the composition of the steps of a plan."""
        calls, size = plan.calls[0].total, plan.calls[0].batch_size
        parts = plan.batches_per_call * calls
        return cls(None if size is None else size * parts, calls, size)


@dataclasses.dataclass(frozen=True)
class Position:
    """The position of a training run in its input, in steps since the first one.

    Its restore point is at or before this position.
    """

    steps: int
    recipe: StepRecipe
    restore_point: RestorePoint = RestorePoint()

    def difference_from(self, recipe: StepRecipe) -> str | None:
        """Returns the difference that prevents counting steps, or `None`."""
        old = self.recipe
        if old.batch_size != recipe.batch_size:
            return f"batches of {old.batch_size} examples, now {recipe.batch_size}"
        return None

    def is_redistributed(self, recipe: StepRecipe) -> bool:
        """Returns whether the number of calls of `input_fn` has changed."""
        return self.recipe.calls != recipe.calls

    def restore_point_for(self, recipe: StepRecipe) -> RestorePoint:
        """Returns the restore point for steps that may have another composition."""
        # A state may contain batches of the old size that were read ahead, and
        # belongs to a fixed number of calls.
        is_same = (self.recipe.call_size, self.recipe.calls) == (
            recipe.call_size,
            recipe.calls,
        )
        return self.restore_point if is_same else RestorePoint()


_logger = logging.getLogger("keras_tpu_estimator")

# The size of a state, beside each checkpoint, that is logged.
_LARGE = 2**24
# Restore points take at most one part in this number of the reading time.
_SHARE = 20


class RestorePoints:
    """The restore points of an input that is read ahead of its use.

    Each checkpoint uses the newest restore point that is not ahead of it. The reading
    thread then makes one for the next checkpoint, so that restore points are cheap and
    close to the checkpoints. The first one is made after `delay_secs`, and none if
    `max_bytes` is 0 or a state is larger, such as a shuffle buffer of images.
    """

    def __init__(
        self,
        first: RestorePoint,
        is_wanted: bool = False,
        max_bytes: int | None = None,
        delay_secs: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        # One thread appends on the right, and the other removes on the left.
        self._points = collections.deque([first])
        self._is_wanted = is_wanted
        self._is_possible = max_bytes != 0
        self._max_bytes = max_bytes
        self._is_logged = False
        self._clock = clock
        self._not_before = clock() + delay_secs

    def newest(self, steps: int) -> RestorePoint:
        """Returns the newest restore point up to a step, which must not decrease."""
        self._is_wanted = True
        while len(self._points) > 1 and self._points[1].steps <= steps:
            self._points.popleft()
        return self._points[0]

    def add(self, make: Callable[[], RestorePoint | None]) -> None:
        """Makes a restore point if one is due and the input has a state."""
        start = self._clock()
        if not (self._is_wanted and self._is_possible):
            return
        if start < self._not_before:
            return
        self._is_wanted = False
        point = _point_of(make)
        self._is_possible = point is not None and self._may_be_saved(point)
        point = point if self._is_possible else None
        if point is not None and point.steps > self._points[-1].steps:
            self._points.append(point)
        end = self._clock()
        self._not_before = end + _SHARE * (end - start)

    def _may_be_saved(self, point: RestorePoint) -> bool:
        """Returns whether a restore point may be saved. A large one is logged."""
        size = 0 if point.states is None else point.states.size
        if self._max_bytes is not None and size > self._max_bytes:
            _logger.warning(
                "The iterator state takes %d MiB, more than "
                "RunConfig(input_state_max_bytes=%d), and is not saved. When "
                "training resumes, it re-reads the batches before that point, "
                "so that a shuffle without a seed repeats some examples and "
                "misses others.",
                size >> 20,
                self._max_bytes,
            )
            return False
        if size > _LARGE and not self._is_logged:
            self._is_logged = True
            _logger.info(
                "The iterator state takes %d MiB beside each checkpoint, because "
                "it contains the examples that input_fn shuffles or reads ahead. "
                "RunConfig(input_state_max_bytes=...) sets a limit, beyond which "
                "batches are counted instead.",
                size >> 20,
            )
        return True


def _point_of(make: Callable[[], RestorePoint | None]) -> RestorePoint | None:
    try:
        return make()
    except Exception as error:  # The user's code, or TensorFlow.
        _logger.info(
            "The input does not support saving its state. Its batches are "
            "counted instead, and re-read when training resumes: %s: %s",
            type(error).__name__,
            error,
        )
        return None


_RECORD = "position.json"
_ALONE = Hosts()


def write_position(saved: SaveFiles, position: Position, hosts: Hosts = _ALONE) -> None:
    """Writes the position of a checkpoint atomically."""
    record = dataclasses.asdict(position)
    states = position.restore_point.states
    if states is not None:
        record["restore_point"]["states"] = states.text
    write_archive(
        saved.position(hosts.index, hosts.count),
        saved.token,
        _RECORD,
        record,
        states.blobs if states else (),
    )


@restoring
def read_position(files: ResumeFiles | None, hosts: Hosts = _ALONE) -> Position | None:
    """Reads the position from a checkpoint's files, or returns `None`.

    If another number of hosts has written it, it has only the number of steps. A
    corrupt file raises `ValueError`.
    """
    if files is None or not files.positions:
        return None
    path = files.save.position(hosts.index, hosts.count)
    if path in files.positions:
        return _read(path)
    other = _read(files.positions[0])
    return Position(other.steps, other.recipe)


def _read(path: str) -> Position:
    advice = "Delete it to read the input from the beginning."
    with parsing(path, "contain the position in the input", advice):
        record, blobs = read_archive(path, _RECORD)
        restore_point = record["restore_point"]
        if restore_point["states"] is not None:
            restore_point["states"] = Packed(restore_point["states"], blobs)
        return Position(
            record["steps"],
            StepRecipe(**record["recipe"]),
            RestorePoint(**restore_point),
        )
