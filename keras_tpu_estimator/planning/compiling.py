"""Compiling a lowered loop for a topology, with errors that name the user's lines."""

import contextlib
import dataclasses
import math
import pathlib
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache
from jax.extend import core as jex

from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.base.common.user_code import SourceLine, is_of_user
from keras_tpu_estimator.base.tracing.jaxprs import inner_functions, place_of
from keras_tpu_estimator.planning import hlo, memory
from keras_tpu_estimator.planning.errors import CompileError, DoesNotFitError
from keras_tpu_estimator.planning.hlo import Instruction, Module
from keras_tpu_estimator.planning.memory import Allocation, ArrayBytes
from keras_tpu_estimator.planning.topologies import DeviceTopology

_SIZE = r"([\d.]+)([KMGT]?)"
# The compiler reports this early, or after it has laid out all arrays.
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
# An estimated batch size leaves the rest free.
_MARGIN = 0.95
# TPUs pad batches to multiples of this.
_ROUND = 8


_TOTAL = re.compile(r"^Memory Space: default.*\nTotal bytes: (\d+)", re.M)
_IN_LARGE_MEMORY = re.compile(r"\d+: size \d+, (?:page \d+, )?preallocated-temp:")
_VALUE = re.compile(r"value: <\d+ ([\w.\-]+)\S* .*?> \(size=(\d+),offset=(\d+)\)")
# Arrays smaller than this fraction of the largest one are not listed.
_SMALLEST = 100


_FIRST_SECS = 10.0


@dataclasses.dataclass(frozen=True)
class Layout:
    """The memory layout of a program that does not fit: its text, the bytes that it
    needs on a core, both `None` if XLA has not written them, and the largest arrays
    that it makes.
    """

    module: Module | None
    used: int | None
    largest: tuple[Allocation, ...]


def laid_out(
    lowered: jax.stages.Lowered,
    count: int = 5,
    in_graph: Callable[[str], SourceLine | None] | None = None,
) -> Layout:
    """Compiles a program that does not fit again, and reads the layout that XLA dumps
    before it fails, because XLA's error contains only the size.
    """
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {
            "xla_dump_to": folder,
            "xla_dump_hlo_as_text": True,
        }
        try:
            lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError:
            pass
        text = _read(folder, "after_optimizations")
        assignment = _read(folder, "after_optimizations-buffer-assignment")
        total = _TOTAL.search(_read(folder, "after_optimizations-memory-usage-report"))
    module = hlo.parse(text, in_graph)
    return Layout(
        module if module.entry else None,
        int(total[1]) if total else None,
        _largest(assignment, module, count),
    )


def _read(folder: str, name: str) -> str:
    """Returns a file that XLA has dumped, or "" if it is missing."""
    files = sorted(pathlib.Path(folder).glob(f"*.{name}.txt"))
    return files[-1].read_text("utf-8") if files else ""


def _largest(assignment: str, module: Module, count: int) -> tuple[Allocation, ...]:
    """Returns the largest buffers of temporary memory, by the largest value in each."""
    instructions = {
        instruction.name: instruction
        for computation in module.computations.values()
        for instruction in computation.instructions
    }
    largest_at: dict[int, tuple[int, Instruction]] = {}
    for part in assignment.split("\nallocation ")[1:]:
        if not _IN_LARGE_MEMORY.match(part):
            continue
        for name, size, offset in _VALUE.findall(part):
            previous = largest_at.get(int(offset))
            if name in instructions and (previous is None or int(size) > previous[0]):
                largest_at[int(offset)] = int(size), instructions[name]
    largest = sorted(largest_at.values(), key=lambda entry: -entry[0])
    return memory.counted(
        memory.largest_of_instruction(module, instruction, size)
        for size, instruction in largest
        if size * _SMALLEST >= largest[0][0]
    )[:count]


def compiled(
    lowered: jax.stages.Lowered,
    topology: DeviceTopology,
    arguments: Mapping[str, PyTree] | None = None,
    batch_size: int | None = None,
    quick: bool = False,
    in_graph: Callable[[str], SourceLine | None] | None = None,
) -> jax.stages.Compiled:
    """Compiles a program, or raises `DoesNotFitError` if it needs more memory than a
    core has, or `CompileError` if the compiler rejects it for another reason.

    A `DoesNotFitError` suggests a batch size only if `arguments`, of which the kind
    "input" depends on the batch, and `batch_size` are given.
    """
    settings = topology.compiler_options | (topology.quick_options if quick else {})
    try:
        with without_cache():
            return lowered.compile(settings or None)
    except jax.errors.JaxRuntimeError as error:
        sizes = _needed(str(error))
        if sizes is None:
            raise _refused(str(error)) from error
        layout = laid_out(lowered, in_graph=in_graph)
        raise _too_large(
            layout, topology, sizes, arguments or {}, batch_size
        ) from error


def lowered(traced: jax.stages.Traced) -> jax.stages.Lowered:
    """Lowers a program, or raises `CompileError` if JAX cannot lower an operation for
    these devices.
    """
    try:
        return traced.lower()
    except NotImplementedError as error:
        primitive = _PRIMITIVE.search(str(error))
        if not primitive:
            raise
        source = _place_of(primitive[1], traced.jaxpr.jaxpr) or ("", 0)
        raise CompileError(str(error), primitive[1], *source) from error


@contextlib.contextmanager
def without_cache() -> Iterator[None]:
    """Disables JAX's compilation cache, which cannot read entries for devices that do
    not exist, in a `with` block.
    """
    settings = jax.config.values
    if not (
        settings["jax_compilation_cache_dir"]
        and settings["jax_enable_compilation_cache"]
    ):
        yield
        return
    jax.config.update("jax_enable_compilation_cache", False)
    # JAX reads the setting once.
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
        compilation_cache.reset_cache()


def _place_of(name: str, jaxpr: jex.Jaxpr) -> tuple[str, int] | None:
    """Returns the user's file and line of an operation, the innermost one if several
    nested functions contain it.
    """
    for equation in jaxpr.eqns:
        inner = (
            _place_of(name, function) for function in inner_functions(equation.params)
        )
        innermost = next((source for source in inner if source is not None), None)
        if innermost is None and equation.primitive.name != name:
            continue
        if innermost and innermost[0]:
            return innermost
        line = place_of(equation.source_info)
        return ("", 0) if line is None else (line.line.file, line.line.number)
    return None


def _too_large(
    layout: Layout,
    topology: DeviceTopology,
    sizes: tuple[int, int],
    arguments: Mapping[str, PyTree],
    batch_size: int | None,
) -> DoesNotFitError:
    used, limit = layout.used or sizes[0], sizes[1]
    sizes_by_kind = memory.sizes_by_kind(arguments, layout.module)
    fitting = batch_size and _fitting(batch_size, used, limit, sizes_by_kind, topology)
    return DoesNotFitError(
        topology.name, used, limit, sizes_by_kind, layout.largest, fitting
    )


def _needed(message: str) -> tuple[int, int] | None:
    """Parses the bytes that a program needs and can use, if the message has them."""
    sizes = _TOO_LARGE.search(message) if "RESOURCE_EXHAUSTED" in message else None
    if not sizes:
        return None
    used, used_unit, limit, limit_unit = filter(
        lambda part: part is not None, sizes.groups()
    )
    return (
        int(float(used) * _UNITS[used_unit]),
        int(float(limit) * _UNITS[limit_unit]),
    )


def _fitting(
    batch_size: int,
    used: int,
    limit: int,
    sizes_by_kind: Mapping[str, ArrayBytes],
    topology: DeviceTopology,
) -> int | None:
    """Estimates a batch size that fits if all memory but the model scales with it."""
    if not sizes_by_kind:
        return None
    model = sum(size.real for kind, size in sizes_by_kind.items() if kind != "input")
    if sizes_by_kind.get("slots", ArrayBytes(0, 0)).real:
        # The gradients have the size of all variables.
        model += sizes_by_kind.get("variables", ArrayBytes(0, 0)).real
    share = (_MARGIN * limit - model) / max(1, used - model)
    unit = math.lcm(topology.num_cores, _ROUND)
    # The batch size itself does not fit, even if the estimate is larger.
    size = min(int(batch_size * share), batch_size - 1)
    return max(0, size - size % (unit if size >= unit else topology.num_cores))


def _refused(message: str) -> CompileError:
    match = _OPERATION.search(message)
    operation = next(filter(None, match.groups()), None) if match else None
    lines = [(file, int(line)) for file, line in _LOCATION.findall(message)]
    users = (line for line in lines if is_of_user(line[0]))
    file, line = next(users, lines[0] if lines else ("", 0))
    return CompileError(message, operation, file, line)


@contextlib.contextmanager
def progress(report: Callable[[str], object], what: str) -> Iterator[None]:
    """Reports how long a `with` block has taken so far: after ten seconds, and then
    whenever the time has doubled.
    """
    is_over, begun = threading.Event(), time.monotonic()

    def watch() -> None:
        due = _FIRST_SECS
        while not is_over.wait(begun + due - time.monotonic()):
            passed = time.monotonic() - begun
            report(f"{what} has taken {passed:.0f} s so far.")
            due = 2 * passed

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
