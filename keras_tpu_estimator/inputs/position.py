"""Where in its input a run of training is."""

import dataclasses

from keras_tpu_estimator.inputs.deployment import InputPlan
from keras_tpu_estimator.inputs.packing import Packed


@dataclasses.dataclass(frozen=True)
class Bookmark:
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
class Feeding:
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
    def of(cls, plan: InputPlan) -> "Feeding":
        """That of the calls of `input_fn` that a host makes."""
        calls, size = plan.calls[0].total, plan.calls[0].batch_size
        parts = plan.batches_per_call * calls
        return cls(None if size is None else size * parts, calls, size)


@dataclasses.dataclass(frozen=True)
class Position:
    """Where a run of training has come to in its input.

    Attributes:
        steps: How many steps it has made since `input_fn` was called.
        feeding: What its steps consist of.
        bookmark: A place at this position or before it.

    Example:

    >>> position = Position(8, Feeding(64, calls=1, call_size=64))
    >>> position.what_differs(Feeding(32, calls=1, call_size=32))
    'batches of 64 examples, now 32'
    """

    steps: int
    feeding: Feeding
    bookmark: Bookmark = Bookmark()

    def what_differs(self, feeding: Feeding) -> str | None:
        """Why steps cannot be counted any more, or `None` if they can."""
        old = self.feeding
        if old.batch_size != feeding.batch_size:
            return (
                f"batches of {old.batch_size} examples, now "
                f"{feeding.batch_size}"
            )
        if old.calls != feeding.calls:
            return f"{old.calls} calls of input_fn, now {feeding.calls}"
        return None

    def bookmark_for(self, feeding: Feeding) -> Bookmark:
        """Where to start reading, with batches that may be cut otherwise."""
        # A state may hold batches that were read ahead, of the old size.
        is_same = self.feeding.call_size == feeding.call_size
        return self.bookmark if is_same else Bookmark()
