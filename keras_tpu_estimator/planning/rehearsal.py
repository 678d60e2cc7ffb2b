"""A script's calls of estimators, planned where they would run."""

import collections
import dataclasses
import logging
import os
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.types import InputFn
from keras_tpu_estimator.ground.base.types import PathLike
from keras_tpu_estimator.planning import lowering
from keras_tpu_estimator.planning import plan_table
from keras_tpu_estimator.planning import plans
from keras_tpu_estimator.planning.boards import Board
from keras_tpu_estimator.planning.plans import AS_RUN
from keras_tpu_estimator.planning.plans import Call
from keras_tpu_estimator.planning.plans import Plan
from keras_tpu_estimator.planning.plans import PlanOptions
from keras_tpu_estimator.planning.plans import Refusal
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.predicted import Predicted
from keras_tpu_estimator.runs.rehearsing import Predictions

# Whoever trains until a checkpoint has come so far would never end.
_MOST_CALLS = 1000

_logger = logging.getLogger("keras_tpu_estimator")


@dataclasses.dataclass(frozen=True)
class _Call:
    """What is planned once.

    Attributes:
        context: That of an estimator, itself and not one like it.
        code: That of the input function: a closure is made anew for each call,
            and its code is not.
        length: How many steps a loop has.
    """

    context: EstimatorContext
    mode: str
    code: Any
    length: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Call) and (
            self.context is other.context
            and self.mode == other.mode
            and self.code is other.code
            and self.length == other.length
        )

    def __hash__(self) -> int:
        return hash((id(self.context), self.mode, id(self.code), self.length))


class Rehearsal:
    """Plans each call once, and gives scripts something to go on with.

    What they are given is nothing computed: evaluations are NaN, predictions
    are zeros, and no file is written.

    Args:
        write: Takes each table. Defaults to `print`.
        options: How to plan. Defaults to as it is run.

    Attributes:
        found: What was planned so far.
    """

    def __init__(
        self,
        boards: Sequence[Board],
        write: Callable[[str], object] = print,
        options: PlanOptions = AS_RUN,
    ):
        self._boards = boards
        self._options = options
        self._write = write
        self._calls: dict[_Call, tuple[Plan | Refusal, ...]] = {}
        self._counts: collections.Counter[_Call] = collections.Counter()

    @property
    def found(self) -> tuple[Plan | Refusal, ...]:
        """All plans, in the order of calls."""
        return tuple(plan for each in self._calls.values() for plan in each)

    def train(
        self,
        context: EstimatorContext,
        input_fn: InputFn,
        steps: int | None,
        validation: InputFn | None,
        validation_steps: int | None,
    ) -> None:
        """Plans a training, and the evaluation beside it.

        Args:
            context: The estimator's.
            input_fn: The user's function.
            steps: How many there are at most, or `None`.
            validation: The same of evaluations, if there are any.
            validation_steps: Theirs.
        """
        self._plan(context, input_fn, ModeKeys.TRAIN, steps)
        if validation is not None:
            self._plan(context, validation, ModeKeys.EVAL, validation_steps)

    def evaluate(
        self, context: EstimatorContext, input_fn: InputFn, steps: int | None
    ) -> dict[str, Any]:
        """Plans an evaluation.

        Args:
            context: The estimator's.
            steps: How many there are at most, or `None`.

        Returns:
            NaN under any name.
        """
        self._plan(context, input_fn, ModeKeys.EVAL, steps)
        unknown = np.float32("nan")
        return collections.defaultdict(
            lambda: unknown, loss=unknown, global_step=np.int64(0)
        )

    def predict(
        self, context: EstimatorContext, input_fn: InputFn
    ) -> Predictions:
        """Plans predictions.

        Args:
            context: The estimator's.

        Yields:
            Zeros, as predictions of one batch.
        """
        found = self._plan(context, input_fn, ModeKeys.PREDICT)
        plan = next(each for each in found if isinstance(each, Plan))
        zeros = jax.tree.map(
            lambda leaf: np.zeros(leaf.shape, leaf.dtype), plan.predictions
        )
        yield Predicted(zeros, plan.examples)

    def export(self, base: PathLike) -> str:
        """Exports nothing.

        Args:
            base: The folder of exports.

        Returns:
            The path that there would be.
        """
        _logger.info("What is exported to %s is not planned.", base)
        return os.path.join(os.fsdecode(base), "0")

    def _plan(
        self,
        context: EstimatorContext,
        input_fn: InputFn,
        mode: str,
        steps: int | None = None,
    ) -> tuple[Plan | Refusal, ...]:
        code = getattr(input_fn, "__code__", input_fn)
        length = lowering.loop_length(context.config, mode, steps)
        key = _Call(context, mode, code, length)
        self._counts[key] += 1
        if self._counts[key] > _MOST_CALLS:
            raise RuntimeError(
                f"The script has made the same call of mode {mode!r} "
                f"{_MOST_CALLS} times. Expected one that ends although no "
                "checkpoint is written while it is planned."
            )
        if key not in self._calls:
            call = Call(context, input_fn, mode, steps)
            found = plans.for_boards(call, self._boards, self._options)
            self._write(plan_table.as_text(found) + "\n")
            self._calls[key] = found
        return self._calls[key]
