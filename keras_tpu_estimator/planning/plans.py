"""What one call of an estimator would need on a board."""

import dataclasses
import time
from collections.abc import Iterable

from keras_tpu_estimator.base.modes import ModeKeys
from keras_tpu_estimator.base.types import InputFn
from keras_tpu_estimator.base.types import Nest
from keras_tpu_estimator.loops.job import Job
from keras_tpu_estimator.planning import compiling
from keras_tpu_estimator.planning import figures
from keras_tpu_estimator.planning.boards import Board
from keras_tpu_estimator.planning.errors import CompileError
from keras_tpu_estimator.planning.errors import DoesNotFitError
from keras_tpu_estimator.planning.figures import Figures
from keras_tpu_estimator.planning.lowering import LoweredLoop

# What of a board may be in the way: its size, its compiler, its number of
# cores.
_PROBLEMS = (DoesNotFitError, CompileError, ValueError)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The program of one call, compiled for a board.

    Attributes:
        board: The board.
        mode: A value of `ModeKeys`.
        steps: How many steps one program makes.
        examples: Those of a step, of all hosts that share it.
        lowering_secs: Seconds that tracing and lowering have taken.
        compiling_secs: Seconds that the compiler has.
        figures: What a step does and needs on a core.
        predictions: Shapes and dtypes of the predictions of a batch; `None` in
            other modes than PREDICT.
    """

    board: Board
    mode: str
    steps: int
    examples: int
    lowering_secs: float
    compiling_secs: float
    figures: Figures
    predictions: Nest = None

    @classmethod
    def of(cls, job: Job, input_fn: InputFn, mode: str, board: Board) -> "Plan":
        """Lowers and compiles the loop of a call.

        Args:
            job: An estimator's functions and settings.
            input_fn: The user's function, of which one batch is read.
            mode: A value of `ModeKeys`.
            board: The board.

        Raises:
            DoesNotFitError: The program needs more memory than a core has.
            CompileError: The compiler refuses something else in it.
            ValueError: Settings, model, input and board do not fit each other,
                or the input is empty.
        """
        if mode == ModeKeys.PREDICT:
            # Hosts predict by themselves.
            board = board.of_one_host()
        start = time.perf_counter()
        loop = LoweredLoop.of(job, input_fn, mode, board.machine())
        lowered = time.perf_counter()
        kinds = loop.arguments_by_kind
        compiled = compiling.compiled(loop.lowered, board, kinds, loop.examples)
        return cls(
            board,
            mode,
            loop.steps,
            loop.examples,
            lowered - start,
            time.perf_counter() - lowered,
            figures.of(compiled, board, loop.steps, kinds),
            loop.predictions,
        )


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Why there is no plan for one of several boards.

    Attributes:
        board: The board.
        mode: A value of `ModeKeys`.
        error: What was raised.
    """

    board: Board
    mode: str
    error: Exception


def for_boards(
    job: Job, input_fn: InputFn, mode: str, boards: Iterable[Board]
) -> tuple[Plan | Refusal, ...]:
    """Plans for each of several boards.

    Args:
        job: An estimator's functions and settings.
        input_fn: The user's function.
        mode: A value of `ModeKeys`.
        boards: The boards.

    Returns:
        A plan for each, or why there is none.

    Raises:
        Exception: As `Plan.of`, if there is a plan for none.
    """
    found = tuple(_tried(job, input_fn, mode, board) for board in boards)
    refusals = [each for each in found if isinstance(each, Refusal)]
    if len(refusals) == len(found):
        raise refusals[0].error
    return found


def _tried(
    job: Job, input_fn: InputFn, mode: str, board: Board
) -> Plan | Refusal:
    try:
        return Plan.of(job, input_fn, mode, board)
    except _PROBLEMS as error:
        return Refusal(board, mode, error)
