"""The plan of one call of an estimator on a topology."""

import dataclasses
import logging
import time
from collections.abc import Iterable, Mapping

import jax

from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import PyTree
from keras_tpu_estimator.engine.device.executables import (
    ExecutableKey,
    Executables,
    is_storable,
)
from keras_tpu_estimator.planning import compiling, costs
from keras_tpu_estimator.planning.calls import Call, fitting_options
from keras_tpu_estimator.planning.costs import StepCost
from keras_tpu_estimator.planning.errors import CompileError, DoesNotFitError
from keras_tpu_estimator.planning.kept_plans import KeptPlans
from keras_tpu_estimator.planning.lowering import LoweredLoop
from keras_tpu_estimator.planning.memory import ArrayBytes
from keras_tpu_estimator.planning.topologies import DeviceTopology
from keras_tpu_estimator.runs.estimator_context import EstimatorContext

# A topology may reject a program because of its memory, its compiler or its
# number of cores.
PROBLEMS = (DoesNotFitError, CompileError, ValueError)

_logger = logging.getLogger("keras_tpu_estimator")


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """The options of plans.

    Raises:
        ValueError: `quick` and `store` are combined.

    Attributes:
        store: The store of compiled programs. Defaults to none.
        quick: Whether to optimize less, which takes a part of the time. Defaults to
            `False`.
        plan_store: The plans of earlier programs. Defaults to none.
    """

    store: Executables | None = None
    quick: bool = False
    plan_store: KeptPlans | None = None

    def __post_init__(self) -> None:
        if self.quick and self.store is not None:
            raise ValueError(
                "`quick` and `save` must not be combined, because quick programs "
                "are slower. Received: both. Omit one of them."
            )


AS_RUN = PlanOptions()
# The maximum number of batch sizes that are compiled for a suggestion.
_MOST_ADVICE = 3


@dataclasses.dataclass(frozen=True)
class Plan:
    """The program of one call, compiled for a topology.

    Attributes:
        topology: The topology.
        mode: A value of `ModeKeys`.
        steps: The maximum number of steps of one program.
        examples: The number of examples in a step, on all hosts that share it.
        lowering_secs: Seconds of tracing and lowering.
        compiling_secs: Seconds of compiling.
        cost: The cost of a step on a core.
        predictions: Shapes and dtypes of the predictions of a batch; `None` in other
            modes than PREDICT.
        saved: The path of the saved program, or `None`.
        weights: The number of trained numbers.
        call_steps: The number of steps of the call; `None` if unknown.
        metrics: Names of an evaluation's metrics. Defaults to none.
    """

    topology: DeviceTopology
    mode: str
    steps: int
    examples: int
    lowering_secs: float
    compiling_secs: float
    cost: StepCost
    predictions: PyTree = None
    saved: str | None = None
    weights: int = 0
    call_steps: int | None = None
    metrics: tuple[str, ...] = ()

    @property
    def examples_per_second(self) -> float | None:
        """The examples of a step divided by its time at best; `None` if unknown."""
        roofline = self.cost.roofline
        if roofline is None or not roofline.at_best:
            return None
        return self.examples / roofline.at_best

    @property
    def call_seconds(self) -> float | None:
        """The duration of the call at best; `None` if unknown."""
        roofline = self.cost.roofline
        if roofline is None or self.call_steps is None:
            return None
        return self.call_steps * roofline.at_best

    @classmethod
    def from_call(
        cls, call: Call, topology: DeviceTopology, options: PlanOptions = AS_RUN
    ) -> "Plan":
        """Lowers and compiles the loop of a call.

        Raises:
            DoesNotFitError: The program needs more memory than a core has.
            CompileError: The compiler rejects the program for another reason.
            ValueError: Settings, model, input and topology do not match, or the input
                is empty.
            PermissionError: Other users may write to the store.
        """
        try:
            return cls.compiled(call, topology, options)
        except DoesNotFitError as error:
            advised = _advising(error, call, topology, options)
            raise advised from error.__cause__

    @classmethod
    def compiled(
        cls, call: Call, topology: DeviceTopology, options: PlanOptions
    ) -> "Plan":
        """Does the same, without looking for options with which the program fits."""
        machine = topology.machine()
        if call.mode == ModeKeys.PREDICT:
            # Each host predicts its share of a batch separately.
            topology = topology.of_one_host()
            devices = topology.machine().devices
            machine = dataclasses.replace(machine, substitutes=devices)
        if options.store is not None:
            options.store.prepare()
        start = time.perf_counter()
        loop = LoweredLoop.from_call(
            call.context, call.input_fn, call.mode, machine, call.steps
        )
        lowering_secs = time.perf_counter() - start

        def of_loop() -> Plan:
            return cls._of_loop(call, loop, topology, options, lowering_secs)

        if options.plan_store is None:
            return of_loop()
        key = ExecutableKey.from_lowered(call.mode, loop.lowered, loop.devices)
        return options.plan_store.plan(key, options.quick, of_loop)

    @classmethod
    def _of_loop(
        cls,
        call: Call,
        loop: LoweredLoop,
        topology: DeviceTopology,
        options: PlanOptions,
        lowering_secs: float,
    ) -> "Plan":
        """Compiles a lowered loop."""
        start = time.perf_counter()
        kinds = loop.arguments_by_kind
        compiled = compiling.compiled(
            loop.lowered,
            topology,
            kinds,
            call.batch_size or loop.examples,
            options.quick,
            loop.step.additions.line_of,
        )
        compiling_secs = time.perf_counter() - start
        cost = _with_resident(
            costs.step_cost(
                compiled,
                topology,
                loop.steps,
                kinds,
                has_loop=call.mode != ModeKeys.PREDICT,
                in_graph=loop.step.additions.line_of,
            ),
            topology,
            call.resident,
            loop.parts_ahead,
        )
        return cls(
            topology,
            call.mode,
            loop.steps,
            loop.examples,
            lowering_secs,
            compiling_secs,
            cost.of_any_effort() if options.quick else cost,
            loop.predictions,
            _saved(options.store, loop, compiled, call.context),
            loop.weights,
            call.steps,
            loop.metrics,
        )


@dataclasses.dataclass(frozen=True)
class Refusal:
    """The error of one topology among several.

    Attributes:
        topology: The topology.
        mode: A value of `ModeKeys`.
        error: The error.
    """

    topology: DeviceTopology
    mode: str
    error: Exception


def for_topologies(
    call: Call,
    topologies: Iterable[DeviceTopology],
    options: PlanOptions = AS_RUN,
    resident: Mapping[str, Mapping[str, ArrayBytes]] | None = None,
) -> tuple[Plan | Refusal, ...]:
    """Plans a call for several topologies, and raises the first error if all have one;
    `resident` are the arrays that earlier calls leave on each core, by the name of the
    topology and by kind.
    """
    resident = resident or {}
    results = tuple(
        _tried(
            dataclasses.replace(call, resident=resident.get(topology.name, {})),
            topology,
            options,
        )
        for topology in topologies
    )
    return checked(results)


def checked(results: tuple[Plan | Refusal, ...]) -> tuple[Plan | Refusal, ...]:
    """Returns the results of all topologies, or raises the first error if all fail."""
    refusals = [result for result in results if isinstance(result, Refusal)]
    if len(refusals) == len(results):
        raise refusals[0].error
    return results


def _tried(
    call: Call, topology: DeviceTopology, options: PlanOptions
) -> Plan | Refusal:
    try:
        return Plan.from_call(call, topology, options)
    except PROBLEMS as error:
        return Refusal(topology, call.mode, error)


def _fits(call: Call, topology: DeviceTopology) -> bool:
    """Returns whether the program of a call compiles and fits."""
    try:
        Plan.compiled(call, topology, PlanOptions(quick=True))
    except Exception:
        # For example, a front end does not support an option.
        return False
    return True


def _advising(
    error: DoesNotFitError, call: Call, topology: DeviceTopology, options: PlanOptions
) -> DoesNotFitError:
    """Returns the error with options and a batch size that fit, if found."""
    advised = _with_batch_size(error, call, topology, options)
    advised.add_options(fitting_options(call, lambda other: _fits(other, topology)))
    return advised


def _with_batch_size(
    error: DoesNotFitError, call: Call, topology: DeviceTopology, options: PlanOptions
) -> DoesNotFitError:
    """Returns the error with a batch size that fits, found by compiling estimates in
    turn, if there is one.
    """
    size = error.batch_size
    if not size or call.batch_size is None:
        return error
    # An estimate may still be too large. Each failure gives a new one.
    for _ in range(_MOST_ADVICE):
        smaller = call.with_batch_size(size)
        try:
            plan = Plan.compiled(smaller, topology, PlanOptions(quick=options.quick))
        except DoesNotFitError as next_error:
            size = next_error.batch_size
            if not size:
                return error.advising(size)
        except Exception:
            # For example, `input_fn` has batches of only one size.
            return error
        else:
            return error.advising(size) if plan.examples <= size else error
    return error.advising(None)


def _with_resident(
    cost: StepCost,
    topology: DeviceTopology,
    resident: Mapping[str, ArrayBytes],
    ahead: int,
) -> StepCost:
    """Adds the other arrays on a core, among them `ahead` further inputs, to a
    program's memory, or raises `DoesNotFitError` if it fits only without them.
    """
    batch = cost.memory.arguments.get("input", ArrayBytes(0, 0))
    beside = dict(resident)
    if ahead and batch.real:
        beside["input staged ahead"] = ArrayBytes(
            ahead * batch.logical, ahead * batch.real
        )
    memory = dataclasses.replace(cost.memory, beside=beside)
    if memory.peak is not None and memory.peak > memory.limit:
        raise DoesNotFitError(
            topology.name, memory.peak, memory.limit, memory.arrays, cost.largest
        )
    return dataclasses.replace(cost, memory=memory)


def _saved(
    store: Executables | None,
    loop: LoweredLoop,
    compiled: jax.stages.Compiled,
    context: EstimatorContext,
) -> str | None:
    """Saves a program if requested and possible, and returns the file's path."""
    if store is None:
        return None
    mode = loop.step.mode
    is_searched = mode == ModeKeys.TRAIN and context.config.debug_nans
    if is_searched or not is_storable(loop.traced):
        _logger.warning(
            "The program of mode %r is not saved because it %s.",
            mode,
            "checks for NaN (`debug_nans=True`)"
            if is_searched
            else "calls Python (such as `jax.debug.print` or `jax.pure_callback`)",
        )
        return None
    key = ExecutableKey.from_lowered(mode, loop.lowered, loop.devices)
    return store.save(key, compiled)
