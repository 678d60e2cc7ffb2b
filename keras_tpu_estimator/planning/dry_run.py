"""Dry runs: a script's calls of estimators are planned instead of executed."""

import collections
import contextlib
import dataclasses
import logging
import os
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import numpy as np

from keras_tpu_estimator.base.common.machine import Machine
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.base.common.types import InputFn
from keras_tpu_estimator.base.hosts import this_process
from keras_tpu_estimator.planning import (
    compiling,
    lowering,
    memory,
    plan_table,
    plans,
    search_table,
)
from keras_tpu_estimator.planning.calls import Call
from keras_tpu_estimator.planning.memory import ArrayBytes
from keras_tpu_estimator.planning.plans import AS_RUN, Plan, PlanOptions, Refusal
from keras_tpu_estimator.planning.search import SearchOptions, search
from keras_tpu_estimator.planning.topologies import DeviceTopology
from keras_tpu_estimator.runs.call_receiver import Predictions
from keras_tpu_estimator.runs.estimator_context import EstimatorContext
from keras_tpu_estimator.runs.prediction_batches import Predicted

# A script that trains until a checkpoint reaches some step would never end.
_MOST_CALLS = 1000
# Arrays that stay on the cores between the calls of an estimator.
_RESIDENT = {"variables", "slots"}
_NOTHING = ArrayBytes(0, 0)
_OF_TRAINING = "slots kept from training"
_OF_OTHERS = "kept by other estimators"


# This flag sets the same number, and JAX rejects both together.
_FLAG = "--xla_force_host_platform_device_count"

_logger = logging.getLogger("keras_tpu_estimator")


@contextlib.contextmanager
def shown_devices(topology: DeviceTopology) -> Iterator[None]:
    """Makes JAX report the cores and hosts of a topology, simulated by the CPU, in a
    `with` block, in which this process is the first host and waits for no others.

    If JAX has already started, it keeps its devices and a warning is logged.
    """
    if "JAX_PLATFORMS" not in os.environ:
        # The plan does not use the devices of this machine.
        jax.config.update("jax_platforms", "cpu")
    if _FLAG not in os.environ.get("XLA_FLAGS", ""):
        try:
            jax.config.update("jax_num_cpu_devices", topology.num_cores)
        except RuntimeError:
            _logger.warning(
                "JAX started before the plan of the script, so `jax.device_count()` "
                "returns %d, although %s has %d cores.",
                len(Machine.from_jax().devices),
                topology.name,
                topology.num_cores,
            )
    before = this_process.settled()
    this_process.settle(this_process.Alone(ignores_calls=True))
    try:
        with contextlib.ExitStack() as stack:
            for module, name, shown_by in _functions(topology):
                stack.enter_context(mock.patch.object(module, name, shown_by))
            yield
    finally:
        this_process.settle(before)


def _functions(
    topology: DeviceTopology,
) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Yields functions of JAX that a script may call, with their replacements."""
    # A dry run has no other hosts to wait for.
    yield jax.distributed, "initialize", lambda *_, **__: None
    yield jax, "default_backend", lambda: topology.platform
    local, devices = topology.of_one_host().num_cores, jax.devices

    def of_all(backend: str | None = None) -> list[jax.Device]:
        return devices(None if backend == topology.platform else backend)

    def of_host(
        process_index: int | None = None,
        backend: str | None = None,
        host_id: int | None = None,
    ) -> list[jax.Device]:
        first = local * (process_index or host_id or 0)
        return of_all(backend)[first : first + local]

    yield jax, "devices", of_all
    yield jax, "local_devices", of_host
    yield jax, "device_count", lambda backend=None: len(of_all(backend))
    yield jax, "local_device_count", lambda backend=None: len(of_host(None, backend))
    yield jax, "process_count", lambda backend=None: topology.num_hosts
    yield jax, "process_indices", lambda backend=None: [*range(topology.num_hosts)]


@dataclasses.dataclass(frozen=True, eq=False)
class _ByIdentity:
    """An object that is compared by identity and kept alive."""

    value: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class _Estimator:
    """A weak reference to an estimator's context, compared by identity."""

    def __init__(self, context: EstimatorContext):
        self._hash = id(context)
        self._context = weakref.ref(context)

    @property
    def is_alive(self) -> bool:
        """Whether the script still references the estimator, and thus its arrays."""
        return self._context() is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Estimator) or not self.is_alive:
            return self is other
        return self._context() is other._context()

    def __hash__(self) -> int:
        return self._hash


@dataclasses.dataclass(frozen=True)
class _Key:
    """A key that is equal for calls that are planned once."""

    context: _Estimator
    mode: str
    program: Hashable


class DryRun:
    """A dry run, which plans each distinct call once, and returns placeholder results:
    NaN for evaluations and zeros for predictions. It writes no file.

    `write` receives each table, and `report` a line before each compilation and during
    a long one.
    """

    why_one_process = (
        "`plan` must not start other processes that use estimators, because it plans "
        "only the calls of one process. Received a call in a process that the script "
        "has started. Plan the script of that process."
    )

    def __init__(
        self,
        topologies: Sequence[DeviceTopology],
        write: Callable[[str], object] = print,
        options: PlanOptions = AS_RUN,
        report: Callable[[str], object] = lambda line: None,
        search_options: SearchOptions | None = None,
    ):
        self._topologies = topologies
        self._options = options
        self._write = write
        self._report = report
        self._search_options = search_options
        self._calls: dict[_Key, tuple[Plan | Refusal, ...]] = {}
        self._counts: collections.Counter[_Key] = collections.Counter()
        # The bytes that each estimator keeps on a core, by topology and kind.
        self._resident: dict[_Estimator, dict[str, dict[str, ArrayBytes]]] = (
            collections.defaultdict(lambda: collections.defaultdict(dict))
        )

    @property
    def plans(self) -> tuple[Plan | Refusal, ...]:
        """All plans, in the order of calls."""
        return tuple(
            plan for plans_of_call in self._calls.values() for plan in plans_of_call
        )

    def train(
        self,
        context: EstimatorContext,
        input_fn: InputFn,
        steps: int | None,
        validation: InputFn | None,
        validation_steps: int | None,
    ) -> None:
        """Plans a training call and the evaluation beside it, whose input is
        `validation`.
        """
        self._plan(context, input_fn, ModeKeys.TRAIN, steps)
        if validation is not None:
            self._plan(context, validation, ModeKeys.EVAL, validation_steps)

    def evaluate(
        self, context: EstimatorContext, input_fn: InputFn, steps: int | None
    ) -> dict[str, Any]:
        """Plans an evaluation, and returns NaN for every metric."""
        plans_of_call = self._plan(context, input_fn, ModeKeys.EVAL, steps)
        plan = next(
            candidate for candidate in plans_of_call if isinstance(candidate, Plan)
        )
        unknown = np.float32("nan")
        result = dict.fromkeys((*plan.metrics, "loss"), unknown)
        return collections.defaultdict(
            lambda: unknown, {**result, "global_step": np.int64(0)}
        )

    def predict(self, context: EstimatorContext, input_fn: InputFn) -> Predictions:
        """Plans predictions, and yields zeros as the predictions of one batch."""
        plans_of_call = self._plan(context, input_fn, ModeKeys.PREDICT)
        plan = next(
            candidate for candidate in plans_of_call if isinstance(candidate, Plan)
        )
        zeros = jax.tree.map(
            lambda leaf: np.zeros(leaf.shape, leaf.dtype), plan.predictions
        )
        yield Predicted(zeros, plan.examples)

    def export(self, context: EstimatorContext, export: Any) -> str:
        """Exports nothing, and returns the path that an export could have."""
        del context
        _logger.info("The export to %s is skipped in a dry run.", export.base)
        return os.path.join(os.fsdecode(export.base), "0")

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
                f"{_MOST_CALLS} times. Make it end even if no checkpoint is "
                "written, because a dry run writes none."
            )
        # A script that trains in a loop makes the same call many times.
        if key not in self._calls:
            call = Call(context, input_fn, mode, steps)
            names = ", ".join(topology.name for topology in self._topologies)
            self._report(f"Compiling mode {mode!r} for {names} ...")
            with compiling.progress(self._report, f"Compiling mode {mode!r}"):
                plans_of_call = self._planned(call, key)
            self._write(plan_table.as_text(plans_of_call) + "\n")
            self._calls[key] = plans_of_call
            self._note_resident(key, plans_of_call)
        return self._calls[key]

    def _planned(self, call: Call, key: _Key) -> tuple[Plan | Refusal, ...]:
        """Plans a call as it is, or with the options that a search finds best."""
        if self._search_options is not None and call.mode == ModeKeys.TRAIN:
            result = search(
                call,
                self._topologies,
                self._search_options,
                self._report,
                self._beside(key),
            )
            self._write(search_table.as_text(result) + "\n")
            return plans.checked(result.by_topology)
        return plans.for_topologies(
            call, self._topologies, self._options, self._beside(key)
        )

    def _beside(self, key: _Key) -> dict[str, dict[str, ArrayBytes]]:
        """Returns the arrays that earlier calls leave on each core, by topology."""
        names = [topology.name for topology in self._topologies]
        return {name: dict(self._beside_on(name, key)) for name in names}

    def _beside_on(self, topology: str, key: _Key) -> Iterator[tuple[str, ArrayBytes]]:
        slots = self._resident[key.context][topology].get("slots", _NOTHING)
        if slots.real and key.mode != ModeKeys.TRAIN:
            yield _OF_TRAINING, slots
        total = memory.total(
            size
            for estimator, topologies in self._resident.items()
            if estimator.is_alive and estimator != key.context
            for size in topologies[topology].values()
        )
        if total.real:
            yield _OF_OTHERS, total

    def _note_resident(
        self, key: _Key, plans_of_call: Iterable[Plan | Refusal]
    ) -> None:
        """Records the variables and slots that a call leaves on each core."""
        for topology, plan in zip(self._topologies, plans_of_call, strict=True):
            sizes = self._resident[key.context][topology.name]
            if isinstance(plan, Plan):
                arguments = plan.cost.memory.arguments
                for kind in _RESIDENT & arguments.keys():
                    before = sizes.get(kind, _NOTHING)
                    sizes[kind] = max(before, arguments[kind], key=_real_bytes)

    def _program_of(self, call: Call) -> Hashable:
        """Returns a key that is equal for calls that run the same program."""
        try:
            return lowering.signature(
                call.context,
                call.input_fn,
                call.mode,
                self._topologies[0].machine(),
                call.steps,
            )
        except ValueError:
            # The call may match another topology. The plan of this one has the error.
            return _ByIdentity(call.input_fn)


def _real_bytes(size: ArrayBytes) -> int:
    return size.real
