"""Where in its input a run of training is."""

import dataclasses

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
        recipe: What its steps consist of.
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
            return (
                f"batches of {old.batch_size} examples, now {recipe.batch_size}"
            )
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
