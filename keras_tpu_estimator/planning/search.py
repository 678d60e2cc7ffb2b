"""A search for the options with which a call of `train` is fastest, and fits.

Options that save memory make a step slower. For each topology and each way to shard the
model, the search therefore takes the first of them with which the program fits, by
quick compilations, and compares only these completely.
"""

import dataclasses
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from keras_tpu_estimator.api.config.run_config import RunConfig
from keras_tpu_estimator.base.common.modes import ModeKeys
from keras_tpu_estimator.planning.calls import Call
from keras_tpu_estimator.planning.kept_plans import KeptPlans
from keras_tpu_estimator.planning.memory import ArrayBytes
from keras_tpu_estimator.planning.plans import PROBLEMS, Plan, PlanOptions, Refusal
from keras_tpu_estimator.planning.topologies import DeviceTopology

Options: TypeAlias = Mapping[str, Any]

# Fields of `RunConfig` and `TPUConfig`.
_SHARDINGS: tuple[Options, ...] = (
    {},
    {"shard_optimizer": True},
    {"fsdp": True},
    {"num_cores_per_replica": 2},
    {"num_cores_per_replica": 2, "fsdp": True},
)
# Those that slow a step down least come first.
_SAVINGS: tuple[Options, ...] = (
    {},
    {"micro_batches": 2},
    {"remat": "activations"},
    {"micro_batches": 4},
    {"remat": "full"},
    {"micro_batches": 4, "remat": "full"},
)
_DEFAULTS: Options = {
    "shard_optimizer": False,
    "fsdp": False,
    "micro_batches": 1,
    "remat": None,
}
_BATCH_FACTORS = (2, 4)
_SMALLER_DTYPES = {"dtype_policy": "mixed_bfloat16", "reduce_dtype": "bfloat16"}


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """The options of a search.

    Args:
        budget_secs: Seconds after which it compiles no further candidate. Defaults to
            unlimited.
        varies_batch: Whether it also tries larger batches, which change the results of
            training. Defaults to `False`.
        varies_dtype: Whether it also tries bfloat16 activations, and gradients that
            are combined in bfloat16, likewise. Defaults to `False`.
        plan_store: The plans of earlier searches. Defaults to none.

    Raises:
        ValueError: The budget is not positive.
    """

    budget_secs: float = float("inf")
    varies_batch: bool = False
    varies_dtype: bool = False
    plan_store: KeptPlans | None = None

    def __post_init__(self) -> None:
        if not self.budget_secs > 0:
            raise ValueError(
                "The budget must be a positive number of minutes. Received: "
                f"{self.budget_secs / 60:g}. Increase it, or omit it."
            )


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Options on a topology.

    Args:
        topology: The topology.
        options: Fields of `RunConfig` and `TPUConfig`, with their values. Those of the
            script are not listed.
        batch_factor: A factor of the script's batch size. Defaults to 1.
    """

    topology: DeviceTopology
    options: tuple[tuple[str, Any], ...] = ()
    batch_factor: int = 1

    def call(self, call: Call) -> Call:
        """Returns a call with these options.

        Raises:
            ValueError: The options do not suit the estimator.
        """
        changed = call.with_options(dict(self.options)) if self.options else call
        if self.batch_factor == 1:
            return changed
        if call.batch_size is None:
            raise ValueError(
                "`train_batch_size` must be an argument of the estimator to try larger "
                "batches. Received: None. Pass it."
            )
        return changed.with_batch_size(self.batch_factor * call.batch_size)


@dataclasses.dataclass(frozen=True)
class Trial:
    """A candidate and its plan, or the reason why it has none."""

    candidate: Candidate
    result: Plan | Refusal

    @property
    def speed(self) -> float:
        """Examples per second at best; 0 if unknown."""
        if isinstance(self.result, Refusal):
            return 0.0
        return self.result.examples_per_second or 0.0

    @property
    def peak(self) -> float:
        """The memory of a core; infinite if unknown."""
        if isinstance(self.result, Refusal):
            return float("inf")
        peak = self.result.cost.memory.peak
        return float("inf") if peak is None else peak

    @property
    def costs(self) -> tuple[float, float, int]:
        """The negative speed, the memory and the number of cores: less is better."""
        return -self.speed, self.peak, self.candidate.topology.num_cores

    def is_dominated_by(self, other: "Trial") -> bool:
        """Returns whether another one has no larger cost, and a smaller one."""
        pairs = zip(self.costs, other.costs, strict=True)
        return all(b <= a for a, b in pairs) and self.costs != other.costs


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """The candidates that fit, and the script's own options, completely compiled.

    Args:
        trials: The trials, the fastest first.
        as_written: The trials of the script's options, one for each topology.
        untried: The number of candidates for which the time did not suffice.
    """

    trials: tuple[Trial, ...]
    as_written: tuple[Trial, ...]
    untried: int = 0

    @property
    def best(self) -> Trial | None:
        """The fastest that fits; of equal ones, that with the least memory."""
        return next(iter(self.trials), None)

    @property
    def by_topology(self) -> tuple[Plan | Refusal, ...]:
        """The best plan for each topology, or why the script's own options fail."""
        best = {
            # The fastest, which comes first, replaces the others.
            trial.candidate.topology.name: trial.result
            for trial in reversed(self.trials)
        }
        return tuple(
            best.get(trial.candidate.topology.name, trial.result)
            for trial in self.as_written
        )

    @property
    def front(self) -> tuple[Trial, ...]:
        """The trials that no other one dominates, the fastest first. Of equal ones, it
        is the first.
        """
        return tuple(
            trial
            for number, trial in enumerate(self.trials)
            if not any(trial.is_dominated_by(other) for other in self.trials)
            and not any(trial.costs == other.costs for other in self.trials[:number])
        )


# Plans a call on a topology; raises one of `PROBLEMS`.
Planner: TypeAlias = Callable[[Call, DeviceTopology, PlanOptions], Plan]


def search(
    call: Call,
    topologies: Sequence[DeviceTopology],
    options: SearchOptions,
    report: Callable[[str], object],
    resident: Mapping[str, Mapping[str, ArrayBytes]] = types.MappingProxyType({}),
    plan: Planner = Plan.compiled,
    clock: Callable[[], float] = time.monotonic,
) -> SearchResult:
    """Compiles candidates for a call of `train`, and returns those that fit.

    Args:
        call: The call.
        topologies: The topologies to compare.
        options: The options of the search.
        report: Receives a line before each compilation.
        resident: As in `plans.for_topologies`. Defaults to nothing.
        plan: Plans a call on a topology.
        clock: Returns the time in seconds.
    """
    calls = {
        topology.name: dataclasses.replace(
            call, resident=resident.get(topology.name, {})
        )
        for topology in topologies
    }
    return _Search(calls, options, report, plan, clock).run(topologies)


class _Search:
    """A search in progress; see `search`."""

    def __init__(
        self,
        calls: Mapping[str, Call],
        options: SearchOptions,
        report: Callable[[str], object],
        plan: Planner,
        clock: Callable[[], float],
    ) -> None:
        self._calls = calls
        self._options = options
        self._report = report
        self._plan = plan
        self._clock = clock
        self._deadline = clock() + options.budget_secs
        self._untried = 0

    def run(self, topologies: Sequence[DeviceTopology]) -> SearchResult:
        """Finds the finalists, and compiles them completely."""
        as_written = [self._trial(Candidate(topology)) for topology in topologies]
        trials = list(as_written)
        for candidate in [*self._finalists(as_written)]:
            if not self._is_late():
                trials.append(self._trial(candidate))
        fitting = [trial for trial in trials if isinstance(trial.result, Plan)]
        ordered = sorted(fitting, key=lambda trial: (-trial.speed, trial.peak))
        return SearchResult(tuple(ordered), tuple(as_written), self._untried)

    def _finalists(self, as_written: Sequence[Trial]) -> Iterator[Candidate]:
        """Yields the first candidate of each family that fits, by quick compilations;
        the script's own options are compiled already.
        """
        for written in as_written:
            topology = written.candidate.topology
            call = self._calls[topology.name]
            for family in _families(call, topology, self._options):
                finalist = self._first_fitting(family, written)
                if finalist is not None:
                    yield finalist

    def _first_fitting(
        self, family: Sequence[Candidate], written: Trial
    ) -> Candidate | None:
        for candidate in family:
            if _is_as_written(candidate, self._calls[candidate.topology.name]):
                if isinstance(written.result, Plan):
                    return None
            elif self._is_late():
                return None
            elif isinstance(self._trial(candidate, quick=True).result, Plan):
                return candidate
        return None

    def _is_late(self) -> bool:
        """Returns whether the time has passed, and counts the omitted candidate."""
        is_late = self._clock() > self._deadline
        self._untried += is_late
        return is_late

    def _trial(self, candidate: Candidate, quick: bool = False) -> Trial:
        topology = candidate.topology
        self._report(
            f"Compiling {'quickly ' if quick else ''}for {topology.name}: "
            f"{shown_options(candidate)}"
        )
        options = PlanOptions(quick=quick, plan_store=self._options.plan_store)
        try:
            call = candidate.call(self._calls[topology.name])
            result: Plan | Refusal = self._plan(call, topology, options)
        except Exception as error:
            # For example, a front end does not support an option.
            if not candidate.options and not isinstance(error, PROBLEMS):
                raise
            result = Refusal(topology, ModeKeys.TRAIN, error)
        return Trial(candidate, result)


def _families(
    call: Call, topology: DeviceTopology, options: SearchOptions
) -> Iterator[list[Candidate]]:
    """Yields candidates that shard alike, the fastest first."""
    config = call.context.config
    has_layout = (config.tpu_config.num_cores_per_replica or 1) > 1
    factors = (1, *(_BATCH_FACTORS if options.varies_batch else ()))
    for sharding in _SHARDINGS:
        if has_layout and "num_cores_per_replica" in sharding:
            # The script has its own layout.
            continue
        for dtype in _dtypes(config) if options.varies_dtype else [{}]:
            for factor in factors:
                yield [
                    Candidate(
                        topology,
                        tuple({**_DEFAULTS, **sharding, **dtype, **saving}.items()),
                        factor,
                    )
                    for saving in _SAVINGS
                ]


def _dtypes(config: RunConfig) -> list[Options]:
    """Returns options of fewer and fewer bits, each with those before it."""
    dtypes: list[Options] = [{}]
    for field, dtype in _SMALLER_DTYPES.items():
        if getattr(config, field) is None:
            dtypes.append({**dtypes[-1], field: dtype})
    return dtypes


def _is_as_written(candidate: Candidate, call: Call) -> bool:
    """Returns whether the script already has the options of a candidate."""
    config = call.context.config
    fields = {**vars(config.tpu_config), **vars(config)}
    return candidate.batch_factor == 1 and all(
        fields[name] == value for name, value in candidate.options
    )


def shown_options(candidate: Candidate) -> str:
    """Returns the options as arguments, such as "fsdp=True"; "as written" for none."""
    if not candidate.options and candidate.batch_factor == 1:
        return "as written"
    shown = [
        f"{name}={value!r}"
        for name, value in candidate.options
        if name not in _DEFAULTS or value != _DEFAULTS[name]
    ]
    if candidate.batch_factor > 1:
        shown.append(f"a batch {candidate.batch_factor} times as large")
    return ", ".join(shown) or "data parallel only"
