"""Compiling a lowered loop for a board, with errors that its author can use."""

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping

import jax
from jax.experimental.compilation_cache import compilation_cache
from jax.extend import core as jex

from keras_tpu_estimator.ground.base.source_line import SourceLine
from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.ground.base.user_files import is_of_user
from keras_tpu_estimator.ground.tracing.jaxprs import inner_functions
from keras_tpu_estimator.ground.tracing.user_places import place_of
from keras_tpu_estimator.planning import memory, oversized
from keras_tpu_estimator.planning.boards import Board
from keras_tpu_estimator.planning.errors import CompileError, DoesNotFitError
from keras_tpu_estimator.planning.memory import Held
from keras_tpu_estimator.planning.oversized import Layout

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
_MARGIN = 0.95
# TPUs pad batches to multiples of this.
_ROUND = 8


def compiled(
    lowered: jax.stages.Lowered,
    board: Board,
    arguments: Mapping[str, Nest] | None = None,
    batch_size: int | None = None,
    quick: bool = False,
    in_graph: Callable[[str], SourceLine | None] | None = None,
) -> jax.stages.Compiled:
    """Compiles a program.

    Args:
        lowered: The program, lowered for devices of the board.
        arguments: What it takes, by kind: nests of shapes with shardings; what
            depends on the batch is called "input". Defaults to `None`, for an
            error that does not say which batch would fit.
        batch_size: That of its steps. Defaults to `None`, likewise.
        quick: Whether the compiler takes little trouble, for a slower program.
            Defaults to `False`.
        in_graph: As in `SourceLines`. Defaults to `None`.

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
    settings = board.compiler_options | (board.quick_options if quick else {})
    try:
        with without_cache():
            return lowered.compile(settings or None)
    except jax.errors.JaxRuntimeError as error:
        sizes = _needed(str(error))
        if sizes is None:
            raise _refused(str(error)) from error
        layout = oversized.laid_out(lowered, in_graph=in_graph)
        raise _too_large(layout, board, sizes, arguments or {}, batch_size) from error


def lowered(traced: jax.stages.Traced) -> jax.stages.Lowered:
    """Lowers a program, which JAX can't for every kind of device.

    Raises:
        CompileError: It has an operation that is unknown there.

    Example:

    >>> import jax, jax.numpy as jnp
    >>> from keras_tpu_estimator.planning import compiling, topologies
    >>> board = topologies.parse("v5e:1x1")
    >>> core = jax.sharding.SingleDeviceSharding(board.machine().first)
    >>> x = jax.ShapeDtypeStruct((8, 8), "float32", sharding=core)
    >>> compiling.lowered(jax.jit(jnp.linalg.eigvals).trace(x))
    Traceback (most recent call last):
    ...
    keras_tpu_estimator.errors.CompileError: ... refuses ... 'eig' ...
    """
    try:
        return traced.lower()
    except NotImplementedError as error:
        found = _PRIMITIVE.search(str(error))
        if not found:
            raise
        place = _place_of(found[1], traced.jaxpr.jaxpr) or ("", 0)
        raise CompileError(str(error), found[1], *place) from error


@contextlib.contextmanager
def without_cache() -> Iterator[None]:
    """Has JAX leave out its compile cache in a `with` block.

    What it would write there for a device that is not there it cannot read.
    """
    settings = jax.config.values
    if not (
        settings["jax_compilation_cache_dir"]
        and settings["jax_enable_compilation_cache"]
    ):
        yield
        return
    jax.config.update("jax_enable_compilation_cache", False)
    # It asks for the setting once.
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
        compilation_cache.reset_cache()


def _place_of(name: str, jaxpr: jex.Jaxpr) -> tuple[str, int] | None:
    """The file and the line of a user that an operation comes from.

    Of what is traced inside of another function of JAX, that one has it.
    """
    for equation in jaxpr.eqns:
        inner = (
            _place_of(name, function) for function in inner_functions(equation.params)
        )
        found = next((place for place in inner if place is not None), None)
        if found is None and equation.primitive.name != name:
            continue
        if found and found[0]:
            return found
        place = place_of(equation.source_info)
        return ("", 0) if place is None else (place.line.file, place.line.number)
    return None


def _too_large(
    layout: Layout,
    board: Board,
    sizes: tuple[int, int],
    arguments: Mapping[str, Nest],
    batch_size: int | None,
) -> DoesNotFitError:
    used, limit = layout.used or sizes[0], sizes[1]
    held = memory.held(arguments, layout.module)
    fitting = batch_size and _fitting(batch_size, used, limit, held, board)
    return DoesNotFitError(board.name, used, limit, held, layout.largest, fitting)


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
    unit = math.lcm(board.num_cores, _ROUND)
    # The batch itself does not fit, whatever its shares say.
    size = min(int(batch_size * share), batch_size - 1)
    return max(0, size - size % (unit if size >= unit else board.num_cores))


def _refused(said: str) -> CompileError:
    found = _OPERATION.search(said)
    operation = next(filter(None, found.groups()), None) if found else None
    places = [(file, int(line)) for file, line in _LOCATION.findall(said)]
    users = (place for place in places if is_of_user(place[0]))
    file, line = next(users, places[0] if places else ("", 0))
    return CompileError(said, operation, file, line)
