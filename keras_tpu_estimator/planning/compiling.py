"""Compiling a lowered loop for a board, with errors that its author can use."""

import contextlib
import os
import re
import sysconfig
import traceback
from collections.abc import Iterator
from collections.abc import Mapping

import jax

from keras_tpu_estimator.base.types import Nest
from keras_tpu_estimator.planning import memory
from keras_tpu_estimator.planning import oversized
from keras_tpu_estimator.planning.boards import Board
from keras_tpu_estimator.planning.errors import CompileError
from keras_tpu_estimator.planning.errors import DoesNotFitError
from keras_tpu_estimator.planning.memory import Held

_SIZE = r"([\d.]+)([KMGT]?)"
# As the compiler finds it out early, and when it has laid out all arrays.
_TOO_LARGE = re.compile(
    rf"HLO temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)"
    rf"|Used {_SIZE} of {_SIZE} hbm"
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_OPERATION = re.compile(
    r"failed to legalize operation '([^']+)'|Custom emitter for (\S+) not found"
    r"|'([\w.]+)' op "
)
_PRIMITIVE = re.compile(r"primitive '(\w+)'")
_LOCATION = re.compile(r"([^\s:\"(]+\.py|<[^<>\s]+>):(\d+)\b")
# What is left free beside a batch that would fit.
_MARGIN = 0.98
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_PACKAGES = ("site-packages", "dist-packages")


def compiled(
    lowered: jax.stages.Lowered,
    board: Board,
    arguments: Mapping[str, Nest] | None = None,
    batch_size: int | None = None,
) -> jax.stages.Compiled:
    """Compiles a program.

    Args:
        lowered: The program, lowered for devices of the board.
        board: The board.
        arguments: What it takes, by kind: nests of shapes with shardings; what
            depends on the batch is called "input". Defaults to `None`, for an
            error that does not say which batch would fit.
        batch_size: That of its steps. Defaults to `None`, likewise.

    Raises:
        DoesNotFitError: It needs more memory than a core has.
        CompileError: The compiler refuses something else in it.

    Example:

    >>> import jax, jax.numpy as jnp
    >>> from keras_tpu_estimator.planning import compiling, topologies
    >>> board = topologies.parse("v5e:1x1")
    >>> core = jax.sharding.SingleDeviceSharding(board.machine().first)
    >>> x = jax.ShapeDtypeStruct((8, 8), "float32", sharding=core)
    >>> program = compiling.compiled(jax.jit(jnp.tanh).lower(x), board)
    """
    try:
        return lowered.compile(board.compiler_options or None)
    except jax.errors.JaxRuntimeError as error:
        sizes = _needed(str(error))
        if sizes is None:
            raise _refused(str(error)) from error
        raise _too_large(
            lowered, board, sizes, arguments or {}, batch_size
        ) from error


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Has JAX name a user's line when it can't lower something for a TPU.

    Raises:
        CompileError: It cannot in the `with` block.

    Example:

    >>> from keras_tpu_estimator.planning import compiling
    >>> with compiling.refusals():
    ...     raise NotImplementedError("rule for primitive 'eig' not found")
    Traceback (most recent call last):
    ...
    keras_tpu_estimator.planning.errors.CompileError: ... refuses ... 'eig' ...
    """
    try:
        yield
    except NotImplementedError as error:
        operation = _PRIMITIVE.search(str(error))
        raise CompileError(
            str(error), operation[1] if operation else None, *_line_of(error)
        ) from error


def _line_of(error: BaseException) -> tuple[str, int]:
    """The line of a user that an error of JAX comes from.

    JAX has it as a cause: it lowers what was traced long before.
    """
    place = "", 0
    cause: BaseException | None = error
    while cause is not None:
        for frame in traceback.extract_tb(cause.__traceback__):
            if _is_of_user(frame.filename):
                place = frame.filename, frame.lineno or 0
        cause = cause.__cause__
    return place


def _too_large(
    lowered: jax.stages.Lowered,
    board: Board,
    sizes: tuple[int, int],
    arguments: Mapping[str, Nest],
    batch_size: int | None,
) -> DoesNotFitError:
    layout = oversized.laid_out(lowered)
    used, limit = layout.used or sizes[0], sizes[1]
    held = memory.held(arguments, layout.module)
    fitting = batch_size and _fitting(batch_size, used, limit, held, board)
    return DoesNotFitError(
        board.name, used, limit, held, layout.largest, fitting
    )


def _needed(said: str) -> tuple[int, int] | None:
    """Bytes that a program needs and can have, if that is what is said."""
    found = _TOO_LARGE.search(said) if "RESOURCE_EXHAUSTED" in said else None
    if not found:
        return None
    used, used_unit, limit, limit_unit = filter(
        lambda part: part is not None, found.groups()
    )
    return (
        int(float(used) * _UNITS[used_unit]),
        int(float(limit) * _UNITS[limit_unit]),
    )


def _fitting(
    batch_size: int,
    used: int,
    limit: int,
    held: Mapping[str, Held],
    board: Board,
) -> int | None:
    """A batch that would fit if all but the model is in proportion to it."""
    if not held:
        return None
    model = sum(each.real for kind, each in held.items() if kind != "input")
    if held.get("slots", Held(0, 0)).real:
        # Gradients of all variables.
        model += held.get("variables", Held(0, 0)).real
    share = (_MARGIN * limit - model) / max(1, used - model)
    size = int(batch_size * min(share, 1.0))
    return max(0, size - size % board.num_cores)


def _refused(said: str) -> CompileError:
    found = _OPERATION.search(said)
    operation = next(filter(None, found.groups()), None) if found else None
    places = [(file, int(line)) for file, line in _LOCATION.findall(said)]
    users = (place for place in places if _is_of_user(place[0]))
    file, line = next(users, places[0] if places else ("", 0))
    return CompileError(said, operation, file, line)


def _is_of_user(file: str) -> bool:
    """Whether a file is neither a library's nor one of this package."""
    parts = file.split(os.sep)
    return not (
        file.startswith((_OWN + os.sep, *_LIBRARIES))
        or any(name in parts for name in _PACKAGES)
    )
