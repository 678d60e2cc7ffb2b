"""What one call of an estimator would need on a board."""

import dataclasses
import logging
import time
from collections.abc import Iterable

import jax

from keras_tpu_estimator.base.modes import ModeKeys
from keras_tpu_estimator.base.types import InputFn
from keras_tpu_estimator.base.types import Nest
from keras_tpu_estimator.device.executable_key import ExecutableKey
from keras_tpu_estimator.device.executables import Executables
from keras_tpu_estimator.device.stored_loops import is_storable
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

_logger = logging.getLogger("keras_tpu_estimator")


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
        saved: The path of the file that it is stored in, or `None`.
    """

    board: Board
    mode: str
    steps: int
    examples: int
    lowering_secs: float
    compiling_secs: float
    figures: Figures
    predictions: Nest = None
    saved: str | None = None

    @classmethod
    def of(
        cls,
        job: Job,
        input_fn: InputFn,
        mode: str,
        board: Board,
        store: Executables | None = None,
        steps: int | None = None,
    ) -> "Plan":
        """Lowers and compiles the loop of a call.

        Args:
            job: An estimator's functions and settings.
            input_fn: The user's function, of which one batch is read.
            mode: A value of `ModeKeys`.
            board: The board.
            store: Where to store what is compiled. Defaults to nowhere.
            steps: Those of the call. Defaults to `None`, for many.

        Raises:
            DoesNotFitError: The program needs more memory than a core has.
            CompileError: The compiler refuses something else in it.
            ValueError: Settings, model, input and board do not fit each other,
                or the input is empty.
            PermissionError: Others may write where it is to be stored.
        """
        machine = board.machine()
        if mode == ModeKeys.PREDICT:
            # Hosts predict by themselves, each its share of a batch.
            board = board.of_one_host()
            own = board.machine().devices
            machine = dataclasses.replace(machine, board=own)
        if store is not None:
            store.prepare()
        start = time.perf_counter()
        loop = LoweredLoop.of(job, input_fn, mode, machine, steps)
        lowered = time.perf_counter()
        kinds = loop.arguments_by_kind
        compiled = compiling.compiled(loop.lowered, board, kinds, loop.examples)
        compiling_secs = time.perf_counter() - lowered
        return cls(
            board,
            mode,
            loop.steps,
            loop.examples,
            lowered - start,
            compiling_secs,
            figures.of(compiled, board, loop.steps, kinds),
            loop.predictions,
            None if store is None else _saved(store, loop, compiled, job),
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
    job: Job,
    input_fn: InputFn,
    mode: str,
    boards: Iterable[Board],
    store: Executables | None = None,
    steps: int | None = None,
) -> tuple[Plan | Refusal, ...]:
    """Plans for each of several boards.

    Args:
        job: An estimator's functions and settings.
        input_fn: The user's function.
        mode: A value of `ModeKeys`.
        boards: The boards.
        store: As in `Plan.of`. Defaults to nowhere.
        steps: As in `Plan.of`. Defaults to `None`, for many.

    Returns:
        A plan for each, or why there is none.

    Raises:
        Exception: As `Plan.of`, if there is a plan for none.
    """
    found = tuple(
        _tried(job, input_fn, mode, board, store, steps) for board in boards
    )
    refusals = [each for each in found if isinstance(each, Refusal)]
    if len(refusals) == len(found):
        raise refusals[0].error
    return found


def _tried(
    job: Job,
    input_fn: InputFn,
    mode: str,
    board: Board,
    store: Executables | None,
    steps: int | None,
) -> Plan | Refusal:
    try:
        return Plan.of(job, input_fn, mode, board, store, steps)
    except _PROBLEMS as error:
        return Refusal(board, mode, error)


def _saved(
    store: Executables,
    loop: LoweredLoop,
    compiled: jax.stages.Compiled,
    job: Job,
) -> str | None:
    """The file that a program was stored in, if it can be."""
    mode = loop.step.mode
    is_searched = mode == ModeKeys.TRAIN and job.config.debug_nans
    if is_searched or not is_storable(loop.traced):
        _logger.warning(
            "The program of mode %r is not stored: it %s.",
            mode,
            "looks for NaN, with debug_nans=True"
            if is_searched
            else "calls Python, as jax.debug.print and jax.pure_callback do",
        )
        return None
    key = ExecutableKey.of(mode, loop.lowered, loop.devices)
    return store.save(key, compiled)
