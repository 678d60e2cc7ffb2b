"""A script's calls of estimators, planned where they would run."""

import collections
import dataclasses
import logging
import os
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.types import InputFn, PathLike
from keras_tpu_estimator.planning import lowering, memory, plan_table, plans, progress
from keras_tpu_estimator.planning.boards import Board
from keras_tpu_estimator.planning.memory import Held
from keras_tpu_estimator.planning.plans import AS_RUN, Call, Plan, PlanOptions, Refusal
from keras_tpu_estimator.runs.dry_run import Predictions
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.prediction_batches import Predicted

# Whoever trains until a checkpoint has come so far would never end.
_MOST_CALLS = 1000
# Arrays that stay on the cores between the calls of an estimator.
_KEPT = {"variables", "slots"}
_NOTHING = Held(0, 0)
_OF_TRAINING = "slots kept from training"
_OF_OTHERS = "kept by other estimators"

_logger = logging.getLogger("keras_tpu_estimator")


@dataclasses.dataclass(frozen=True, eq=False)
class _ByIdentity:
    """An object that is equal to itself only, and stays alive.

    Attributes:
        value: The object.
    """

    value: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class _Estimator:
    """An estimator, compared by identity, that this does not keep alive.

    Args:
        context: The estimator's.
    """

    def __init__(self, context: EstimatorContext):
        self._hash = id(context)
        self._context = weakref.ref(context)

    @property
    def is_alive(self) -> bool:
        """Whether the script still has it, and so its arrays."""
        return self._context() is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Estimator) or not self.is_alive:
            return self is other
        return self._context() is other._context()

    def __hash__(self) -> int:
        return self._hash


@dataclasses.dataclass(frozen=True)
class _Key:
    """A key that is equal for calls that are planned once.

    Attributes:
        context: The estimator.
        mode: A value of `ModeKeys`.
        program: What is equal for calls that run the same program.
    """

    context: _Estimator
    mode: str
    program: Hashable


class Rehearsal:
    """Plans each call once, and gives scripts something to go on with.

    What they are given is nothing computed: evaluations are NaN, predictions
    are zeros, and no file is written.

    Args:
        write: Takes each table. Defaults to `print`.
        options: How to plan. Defaults to as it is run.
        report: Takes a line before each compilation, and during a long one.
            Defaults to none.

    Attributes:
        found: What was planned so far.
    """

    def __init__(
        self,
        boards: Sequence[Board],
        write: Callable[[str], object] = print,
        options: PlanOptions = AS_RUN,
        report: Callable[[str], object] = lambda line: None,
    ):
        self._boards = boards
        self._options = options
        self._write = write
        self._report = report
        self._calls: dict[_Key, tuple[Plan | Refusal, ...]] = {}
        self._counts: collections.Counter[_Key] = collections.Counter()
        # Bytes that each estimator keeps on a core, by board and kind.
        self._kept: dict[_Estimator, dict[str, dict[str, Held]]] = (
            collections.defaultdict(lambda: collections.defaultdict(dict))
        )

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
            NaN under the names of metrics, and under any other.
        """
        found = self._plan(context, input_fn, ModeKeys.EVAL, steps)
        plan = next(each for each in found if isinstance(each, Plan))
        unknown = np.float32("nan")
        result = dict.fromkeys((*plan.metrics, "loss"), unknown)
        return collections.defaultdict(
            lambda: unknown, {**result, "global_step": np.int64(0)}
        )

    def predict(self, context: EstimatorContext, input_fn: InputFn) -> Predictions:
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
        key = _Key(
            _Estimator(context),
            mode,
            self._program_of(Call(context, input_fn, mode, steps)),
        )
        self._counts[key] += 1
        if self._counts[key] > _MOST_CALLS:
            raise RuntimeError(
                f"The script has made the same call of mode {mode!r} "
                f"{_MOST_CALLS} times. Expected one that ends although no "
                "checkpoint is written while it is planned."
            )
        if key not in self._calls:
            call = Call(context, input_fn, mode, steps)
            names = ", ".join(board.name for board in self._boards)
            self._report(f"Compiling mode {mode!r} for {names} ...")
            with progress.reported(self._report, f"Compiling mode {mode!r}"):
                found = plans.for_boards(
                    call, self._boards, self._options, self._beside(key)
                )
            self._write(plan_table.as_text(found) + "\n")
            self._calls[key] = found
            self._note_kept(key, found)
        return self._calls[key]

    def _beside(self, key: _Key) -> dict[str, dict[str, Held]]:
        """Returns what earlier calls have left on each core, by board."""
        names = [board.name for board in self._boards]
        return {name: dict(self._beside_on(name, key)) for name in names}

    def _beside_on(self, board: str, key: _Key) -> Iterator[tuple[str, Held]]:
        slots = self._kept[key.context][board].get("slots", _NOTHING)
        if slots.real and key.mode != ModeKeys.TRAIN:
            yield _OF_TRAINING, slots
        others = memory.total(
            held
            for estimator, boards in self._kept.items()
            if estimator.is_alive and estimator != key.context
            for held in boards[board].values()
        )
        if others.real:
            yield _OF_OTHERS, others

    def _note_kept(self, key: _Key, found: Iterable[Plan | Refusal]) -> None:
        """Notes the variables and slots that a call leaves on each core."""
        for board, plan in zip(self._boards, found, strict=True):
            kept = self._kept[key.context][board.name]
            if isinstance(plan, Plan):
                given = plan.figures.memory.arguments
                for kind in _KEPT & given.keys():
                    before = kept.get(kind, _NOTHING)
                    kept[kind] = max(before, given[kind], key=_real_bytes)

    def _program_of(self, call: Call) -> Hashable:
        """Returns a key that is equal for calls that run the same program."""
        try:
            return lowering.signature(
                call.context,
                call.input_fn,
                call.mode,
                self._boards[0].machine(),
                call.steps,
            )
        except ValueError:
            # It may fit another board. The plan of this one has the error.
            return _ByIdentity(call.input_fn)


def _real_bytes(held: Held) -> int:
    return held.real
