"""What one call of an estimator would need on a topology."""

import dataclasses
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Self

import jax

from keras_tpu_estimator.engine.device.executable_key import ExecutableKey
from keras_tpu_estimator.engine.device.executables import Executables
from keras_tpu_estimator.engine.device.stored_loops import is_storable
from keras_tpu_estimator.ground.base.modes import ModeKeys
from keras_tpu_estimator.ground.base.types import InputFn, Nest
from keras_tpu_estimator.planning import compiling, costs
from keras_tpu_estimator.planning.costs import StepCost
from keras_tpu_estimator.planning.errors import CompileError, DoesNotFitError
from keras_tpu_estimator.planning.lowering import LoweredLoop
from keras_tpu_estimator.planning.memory import Held
from keras_tpu_estimator.planning.topologies import DeviceTopology
from keras_tpu_estimator.runs.estimator_context import EstimatorContext

# What of a topology may be in the way: its size, its compiler, its number of
# cores.
_PROBLEMS = (DoesNotFitError, CompileError, ValueError)

_logger = logging.getLogger("keras_tpu_estimator")


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of an estimator that is planned.

    Attributes:
        input_fn: The user's function, of which one batch is read.
        steps: How many it makes. Defaults to `None`, for many.
        kept: What earlier calls have left on each core, by kind. Defaults to
            nothing.
    """

    context: EstimatorContext
    input_fn: InputFn
    mode: str
    steps: int | None = None
    kept: Mapping[str, Held] = dataclasses.field(default_factory=dict)

    @property
    def batch_size(self) -> int | None:
        """The value from the estimator's arguments, if given."""
        return self.context.placement.batch_sizes[self.mode]

    def with_batch_size(self, size: int) -> Self:
        """Returns the call of an estimator with another batch size."""
        placement = self.context.placement
        sizes = {**placement.batch_sizes, self.mode: size}
        placement = dataclasses.replace(placement, batch_sizes=sizes)
        context = dataclasses.replace(self.context, placement=placement)
        return dataclasses.replace(self, context=context)


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """How plans are made.

    Attributes:
        store: Where what is compiled is stored. Defaults to nowhere.
        quick: Whether the compiler takes little trouble: a part of the time,
            for slower programs. Defaults to `False`.

    Raises:
        ValueError: Slower programs would be stored.
    """

    store: Executables | None = None
    quick: bool = False

    def __post_init__(self) -> None:
        if self.quick and self.store is not None:
            raise ValueError(
                "What is stored should be as fast as it can be. Received "
                "quick=True and a folder to store it in. Leave out one of them."
            )


AS_RUN = PlanOptions()
# Compilations of batch sizes to advise.
_MOST_ADVICE = 3


@dataclasses.dataclass(frozen=True)
class Plan:
    """The program of one call, compiled for a topology.

    Attributes:
        topology: The topology.
        mode: A value of `ModeKeys`.
        steps: How many steps one program makes.
        examples: Those of a step, of all hosts that share it.
        lowering_secs: Seconds that tracing and lowering have taken.
        compiling_secs: Seconds that the compiler has.
        cost: What a step does and needs on a core.
        predictions: Shapes and dtypes of the predictions of a batch; `None` in
            other modes than PREDICT.
        saved: The path of the file that it is stored in, or `None`.
        weights: How many numbers the optimizers train.
        call_steps: How many steps the call makes; `None` if that is not known.
        metrics: Names of an evaluation's metrics. Defaults to none.
    """

    topology: DeviceTopology
    mode: str
    steps: int
    examples: int
    lowering_secs: float
    compiling_secs: float
    cost: StepCost
    predictions: Nest = None
    saved: str | None = None
    weights: int = 0
    call_steps: int | None = None
    metrics: tuple[str, ...] = ()

    @property
    def examples_per_second(self) -> float | None:
        """Those of a step by its time at best, or `None` if not known."""
        roofline = self.cost.roofline
        if roofline is None or not roofline.at_best:
            return None
        return self.examples / roofline.at_best

    @property
    def call_seconds(self) -> float | None:
        """How long the call takes at best, or `None` if that is not known."""
        roofline = self.cost.roofline
        if roofline is None or self.call_steps is None:
            return None
        return self.call_steps * roofline.at_best

    @classmethod
    def of(
        cls, call: Call, topology: DeviceTopology, options: PlanOptions = AS_RUN
    ) -> "Plan":
        """Lowers and compiles the loop of a call.

        Args:
            call: The call.
            topology: The topology.
            options: How. Defaults to as it is run.

        Raises:
            DoesNotFitError: The program needs more memory than a core has.
            CompileError: The compiler refuses something else in it.
            ValueError: Settings, model, input and topology do not fit each other,
                or the input is empty.
            PermissionError: Others may write where it is to be stored.
        """
        try:
            return cls._of(call, topology, options)
        except DoesNotFitError as error:
            advised = _advising(error, call, topology, options)
            raise advised from error.__cause__

    @classmethod
    def _of(cls, call: Call, topology: DeviceTopology, options: PlanOptions) -> "Plan":
        machine = topology.machine()
        if call.mode == ModeKeys.PREDICT:
            # Hosts predict by themselves, each its share of a batch.
            topology = topology.of_one_host()
            own = topology.machine().devices
            machine = dataclasses.replace(machine, board=own)
        if options.store is not None:
            options.store.prepare()
        start = time.perf_counter()
        loop = LoweredLoop.of(
            call.context, call.input_fn, call.mode, machine, call.steps
        )
        lowered = time.perf_counter()
        kinds = loop.arguments_by_kind
        compiled = compiling.compiled(
            loop.lowered,
            topology,
            kinds,
            call.batch_size or loop.examples,
            options.quick,
            loop.step.line_in_graph,
        )
        compiling_secs = time.perf_counter() - lowered
        found = _with_others(
            costs.step_cost(
                *(compiled, topology, loop.steps, kinds),
                has_loop=call.mode != ModeKeys.PREDICT,
                in_graph=loop.step.line_in_graph,
            ),
            topology,
            call.kept,
            loop.parts_ahead,
        )
        return cls(
            topology,
            call.mode,
            loop.steps,
            loop.examples,
            lowered - start,
            compiling_secs,
            found.of_any_effort() if options.quick else found,
            loop.predictions,
            _saved(options.store, loop, compiled, call.context),
            loop.weights,
            call.steps,
            loop.metrics,
        )


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Why there is no plan for one of several topologies.

    Attributes:
        topology: The topology.
        mode: A value of `ModeKeys`.
        error: What was raised.
    """

    topology: DeviceTopology
    mode: str
    error: Exception


def for_topologies(
    call: Call,
    topologies: Iterable[DeviceTopology],
    options: PlanOptions = AS_RUN,
    kept: Mapping[str, Mapping[str, Held]] | None = None,
) -> tuple[Plan | Refusal, ...]:
    """Plans for each of several topologies.

    Args:
        options: How. Defaults to as it is run.
        kept: By the name of a topology, what earlier calls have left on each of
            its cores. Defaults to nothing.

    Returns:
        A plan for each, or why there is none.

    Raises:
        Exception: As `Plan.of`, if there is a plan for none.
    """
    kept = kept or {}
    found = tuple(
        _tried(
            dataclasses.replace(call, kept=kept.get(topology.name, {})),
            topology,
            options,
        )
        for topology in topologies
    )
    refusals = [each for each in found if isinstance(each, Refusal)]
    if len(refusals) == len(found):
        raise refusals[0].error
    return found


def _tried(
    call: Call, topology: DeviceTopology, options: PlanOptions
) -> Plan | Refusal:
    try:
        return Plan.of(call, topology, options)
    except _PROBLEMS as error:
        return Refusal(topology, call.mode, error)


def _advising(
    error: DoesNotFitError, call: Call, topology: DeviceTopology, options: PlanOptions
) -> DoesNotFitError:
    """Returns the error with a batch size that fits, if one is found.

    Compiles the estimated size. If it does not fit, compiles the next estimate.
    """
    size = error.batch_size
    if not size or call.batch_size is None:
        return error
    for _ in range(_MOST_ADVICE):
        smaller = call.with_batch_size(size)
        try:
            plan = Plan._of(smaller, topology, PlanOptions(quick=options.quick))
        except DoesNotFitError as found:
            size = found.batch_size
            if not size:
                return error.advising(size)
        except Exception:
            # `input_fn` has batches of one size only, for instance.
            return error
        else:
            return error.advising(size) if plan.examples <= size else error
    return error.advising(None)


def _with_others(
    found: StepCost, topology: DeviceTopology, kept: Mapping[str, Held], ahead: int
) -> StepCost:
    """Adds what is on a core beside a program.

    Args:
        kept: What earlier calls have left, by kind.
        ahead: How many more inputs like its own there are.

    Raises:
        DoesNotFitError: The program fits only without it.
    """
    given = found.memory.arguments.get("input", Held(0, 0))
    beside = dict(kept)
    if ahead and given.real:
        beside["input staged ahead"] = Held(ahead * given.logical, ahead * given.real)
    memory = dataclasses.replace(found.memory, beside=beside)
    if memory.peak is not None and memory.peak > memory.limit:
        raise DoesNotFitError(
            topology.name, memory.peak, memory.limit, memory.held, found.largest
        )
    return dataclasses.replace(found, memory=memory)


def _saved(
    store: Executables | None,
    loop: LoweredLoop,
    compiled: jax.stages.Compiled,
    context: EstimatorContext,
) -> str | None:
    """The file that a program was stored in, if it was to be, and can be."""
    if store is None:
        return None
    mode = loop.step.mode
    is_searched = mode == ModeKeys.TRAIN and context.config.debug_nans
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
