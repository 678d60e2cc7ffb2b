"""The first difference of two recorded runs, in the order of computation."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_tpu_estimator.base.common.shown import some
from keras_tpu_estimator.workflow.comparing import layers, rounding, updates
from keras_tpu_estimator.workflow.comparing.findings import (
    Compared,
    Comparison,
    Finding,
    of_values,
)
from keras_tpu_estimator.workflow.comparing.pairing import Pair, Pairing
from keras_tpu_estimator.workflow.comparing.records import (
    StepRecord,
    TrainingRecord,
    sampled,
)
from keras_tpu_estimator.workflow.comparing.rounding import (
    Difference,
    of_runs,
    relative_difference,
)

# The gradient of a variable is zero if its rounding is larger than this part of it.
_ZERO = 0.03
# TensorFlow computes 1 - 0.999 in float32, which changes a second moment by 1.3e-5, and
# the update by half of it.
_OF_CONSTANTS = {"optimizer state": 1e-4, "variable": 2e-5}
# The layer that causes a difference of the loss differs by at least a part of it.
_PART = 0.03
_LEAST, _MOST = 3e-6, 1e-3
_MOST_NAMES = 20


class TrainingComparison:
    """Two records of training from the same values, with the same batches.

    Args:
        old: The old program's.
        new: The new program's.
        copies: The old program's, from values that differ by rounding, and others by
            more.
        tolerance: The relative difference that is accepted.
    """

    def __init__(
        self,
        old: TrainingRecord,
        new: TrainingRecord,
        copies: Sequence[TrainingRecord],
        pairing: Pairing,
        tolerance: float,
    ):
        self._old, self._new = old, new
        # A copy may end early, where the loss is not a number.
        self._copies = [
            dataclasses.replace(
                copy, steps=[*copy.steps, *old.steps[len(copy.steps) :]]
            )
            for copy in copies
        ]
        self._pairing = pairing
        self._tolerance = tolerance
        # The steps in which a variable's gradient is only rounding, such as zero, and
        # the variables whose gradient rounding has changed over several steps.
        self._rounded: dict[str, set[int]] = {}
        self._drifted: set[str] = set()

    def run(self) -> Comparison:
        """Compares until the first difference."""
        compared: list[Compared] = []
        finding = None
        for one in self._compared():
            compared.append(one)
            accepted = max(self._tolerance, _OF_CONSTANTS.get(one.kind, 0.0))
            if one.difference.exceeds(accepted):
                finding = Finding(one, self._explanation(one))
                break
        return Comparison(tuple(compared), finding, tuple(self._notes()))

    def _compared(self) -> Iterator[Compared]:
        records = self._old, self._new, *self._copies
        before = [record.initial for record in records]
        yield from self._without_counterpart()
        yield from _rates_of_dropout(self._old.dropout, self._new.dropout)
        runs = zip(*(record.steps for record in records), strict=False)
        for number, steps in enumerate(runs, 1):
            losses = of_runs(*(step.loss for step in steps))
            yield Compared("loss", "", number, losses)
            yield from self._gradients(number, steps)
            yield from _rates(number, *steps[:2])
            starts = [step.start or {} for step in steps]
            before = [
                {**values, **start}
                for values, start in zip(before, starts, strict=True)
            ]
            after = [step.values for step in steps]
            yield from self._changes(number, before, after)
            before = after
        yield from self._on_the_host()
        count = len(self._old.steps), len(self._new.steps)
        if count[0] != count[1]:
            yield Compared("number of steps", "", None, Difference(float("inf")))

    def _without_counterpart(self) -> Iterator[Compared]:
        """Yields the trained variables that only one of the programs has."""
        for record, paths in (
            (self._old, self._pairing.only_old),
            (self._new, self._pairing.only_new),
        ):
            for path in paths:
                if record.variables[path].is_trainable:
                    yield Compared(
                        "trained variable", path, None, Difference(float("inf"))
                    )

    def _on_the_host(self) -> Iterator[Compared]:
        """Yields what `host_call` and summaries receive in both programs."""
        records = self._old, self._new, self._copies[0]
        runs = zip(*(record.steps for record in records), strict=False)
        for number, steps in enumerate(runs, 1):
            old, new, again = (step.to_the_host for step in steps)
            for name in sorted(old.keys() & new.keys() & again.keys()):
                difference = of_values(old[name], new[name], again[name])
                yield Compared("host_call and summaries", name, number, difference)

    def _gradients(
        self, number: int, steps: Sequence[StepRecord]
    ) -> Iterator[Compared]:
        for pair in self._pairing.pairs:
            paths = _paths(pair, len(steps))
            if any(
                path not in step.gradients
                for path, step in zip(paths, steps, strict=True)
            ):
                continue
            old, new, *copies = (
                step.gradients[p] for p, step in zip(paths, steps, strict=True)
            )
            # A jump is not in all of them. If only the new gradient is not zero,
            # rounding is small, relative to that.
            if all(relative_difference(old, copy, new) > _ZERO for copy in copies):
                begins_alike = number == 1 or steps[-1].start is not None
                if begins_alike or pair.new in self._rounded:
                    self._rounded.setdefault(pair.new, set()).add(number)
                else:
                    self._drifted.add(pair.new)
                continue
            yield Compared("gradient", pair.new, number, of_runs(old, new, *copies))

    def _changes(
        self,
        number: int,
        before: Sequence[Mapping[str, Any]],
        after: Sequence[Mapping[str, Any]],
    ) -> Iterator[Compared]:
        """Yields the changes of variables in a step, first those of optimizer state."""
        facts = self._new.variables
        in_order = sorted(self._pairing.pairs, key=lambda p: not facts[p.new].is_slot)
        for pair in in_order:
            owner = facts[pair.new].owner or pair.new
            if owner in self._drifted or number in self._rounded.get(owner, ()):
                continue
            difference = _of_changes(pair, before, after)
            if difference is not None:
                kind = "optimizer state" if facts[pair.new].is_slot else "variable"
                yield Compared(kind, pair.new, number, difference)

    def _explanation(self, one: Compared) -> str:
        match one.kind:
            case "trained variable":
                program = "old" if one.name in self._pairing.only_old else "new"
                return (
                    f"Only the {program} program has it. If the other one has it under "
                    "another name, pass `mapping`."
                )
            case "dropout":
                return "The rates differ: " + " and ".join(
                    ", ".join(f"{rate:g}" for rate in _known_rates(record.dropout))
                    or "none"
                    for record in (self._old, self._new)
                )
            case "loss":
                return self._of_loss(one)
            case "gradient":
                return self._of_gradient(one)
            case "learning rate":
                return "Compare the schedule, and the step that it starts from."
            case "optimizer state":
                return self._of_state(one)
            case "variable":
                return self._of_variable(one)
            case "host_call and summaries":
                return "What the step computes is equal: compare what is recorded."
        return "Compare the end of the inputs."

    def _of_loss(self, one: Compared) -> str:
        old, new = self._old.dataflow, self._new.dataflow
        if one.step != 1:
            return (
                "All compared values were equal after the step before: compare what "
                "depends on the step, and the batches."
            )
        if old is None or new is None or not (old.operations and new.operations):
            return "The forward passes could not be observed."
        devices = old.forward.devices, new.forward.devices
        if devices[0] != devices[1]:
            return (
                f"The old program runs on {devices[0]} devices and the new one on "
                f"{devices[1]}: compare both on one."
            )
        part = min(max(one.difference.relative * _PART, _LEAST), _MOST)
        facts = self._new.variables
        trained = frozenset(path for path in facts if facts[path].is_trainable)
        layer = layers.first_difference(
            old, new, self._pairing.translate, trained, part
        )
        if layer is None:
            return "The outputs of all layers are equal: compare the loss."
        return str(layer)

    def _of_gradient(self, one: Compared) -> str:
        step, pair = (one.step or 1) - 1, self._pair(one.name)
        factor = updates.multiple(
            self._old.steps[step].gradients[pair.old],
            self._new.steps[step].gradients[pair.new],
        )
        if factor:
            return (
                f"It is {factor:.4g} times the old program's: compare what scales or "
                "clips gradients, and whether the cores' are averaged or summed."
            )
        return (
            "The loss is equal: compare stopped gradients, what is added to the loss, "
            "and what clips gradients."
        )

    def _of_state(self, one: Compared) -> str:
        step, pair = (one.step or 1) - 1, self._pair(one.name)
        factor = updates.multiple(
            self._old.steps[step].values[pair.old],
            self._new.steps[step].values[pair.new],
        )
        times = "" if factor is None else f"It is {factor:.4g} times as large. "
        return (
            f"The old program has it as `{pair.old}`. {times}Compare the optimizer's "
            "decay rates, its initial values, and the gradients that it receives "
            "(clipping, weight decay). If lookups repeat ids, `tf.clip_by_global_norm` "
            "counts each row, and the new program sums rows first."
        )

    def _of_variable(self, one: Compared) -> str:
        pair, step = self._pair(one.name), (one.step or 1) - 1
        before = self._old.initial if step == 0 else self._old.steps[step - 1].values
        old = self._old.steps[step].values[pair.old]
        new = self._new.steps[step].values[pair.new]
        reason = updates.explanation(_sampled_like(before[pair.old], old), old, new)
        if not self._new.variables[pair.new].is_trainable:
            reason += " It is not trained: compare the momentum of moving averages."
        flow = self._new.dataflow
        if flow is not None and flow.forward.devices > 1:
            reason += " Gradients may be clipped before or after the mean over devices."
        return reason

    def _pair(self, path: str) -> Pair:
        return next(pair for pair in self._pairing.pairs if pair.new == path)

    def _notes(self) -> Iterator[str]:
        count = max(map(len, self._rounded.values()), default=0)
        most = [p for p, steps in self._rounded.items() if len(steps) == count]
        fewer = self._rounded.keys() - most
        if most:
            rounded = some(sorted(most), _MOST_NAMES)
            yield (
                f"In {count} steps, the gradients of {rounded} are zero or only "
                "rounding, so their updates are not compared."
            )
        if fewer:
            yield f"In fewer steps, the same holds for {some(sorted(fewer))}."
        if self._drifted:
            yield (
                "The values of all steps are too large to begin each step with those "
                "of the old program. Rounding has grown from step to step, so that "
                f"later gradients of {some(sorted(self._drifted))} are not compared: "
                "compare fewer steps, from a checkpoint."
            )
        if any(np.isnan(step.loss) for step in self._old.steps):
            yield (
                "The loss of the old program is not a number in step "
                f"{len(self._old.steps)}, which ends the comparison of training."
            )
        for program, record in (("old", self._old), ("new", self._new)):
            random = () if record.dataflow is None else record.dataflow.forward.random
            if random:
                yield (
                    f"The loss of the {program} program depends on random numbers of "
                    f"{some(random)}. They are other ones in another program."
                )
        if not (self._old.steps and self._new.steps):
            return
        old, new = (record.steps[0].to_the_host for record in (self._old, self._new))
        for program, names in (("old", old.keys() - new), ("new", new.keys() - old)):
            if names:
                yield f"Only the {program} program records {some(sorted(names))}."


def _sampled_like(value: Any, other: np.ndarray) -> np.ndarray:
    """Returns an array, or the same sample of it as another value."""
    value = np.asarray(value)
    return value if value.size == other.size else sampled(value)


def _known_rates(rates: Sequence[float | None]) -> list[float]:
    """Returns the rates that are no tensors and drop something."""
    # TensorFlow may hold a rate in 32 bits.
    return sorted({round(rate, 5) for rate in rates if rate})


def _rates_of_dropout(
    old: Sequence[float | None], new: Sequence[float | None]
) -> Iterator[Compared]:
    """Yields the comparison of the rates, if a program has dropout."""
    rates = _known_rates(old), _known_rates(new)
    if any(rates):
        difference = Difference(0.0 if rates[0] == rates[1] else 1.0)
        yield Compared("dropout", "", None, difference)


def _rates(number: int, old: StepRecord, new: StepRecord) -> Iterator[Compared]:
    names = {"learning_rate": "learning_rate"}
    if len(old.learning_rates) > 1:
        names = {name: name for name in old.learning_rates}
    for name in names:
        if name in old.learning_rates and name in new.learning_rates:
            relative = relative_difference(
                np.asarray(old.learning_rates[name]),
                np.asarray(new.learning_rates[name]),
            )
            yield Compared("learning rate", name, number, Difference(relative))


def _paths(pair: Pair, programs: int) -> list[str]:
    """Returns the paths in the old program, the new one, and the copies of the old."""
    return [pair.old, pair.new, *[pair.old] * (programs - 2)]


def _of_changes(
    pair: Pair,
    before: Sequence[Mapping[str, Any]],
    after: Sequence[Mapping[str, Any]],
) -> Difference | None:
    """Returns the difference of the changes of a variable, relative to the largest."""
    paths = _paths(pair, len(after))
    if pair.factor is None or any(
        p not in a for p, a in zip(paths, after, strict=True)
    ):
        return None
    changes = []
    for path, values_before, values_after in zip(paths, before, after, strict=True):
        end = np.asarray(values_after[path], np.float64)
        start = np.asarray(_sampled_like(values_before[path], end), np.float64)
        changes.append(end.reshape(-1) - start.reshape(-1))
    old, new, *copies = changes
    changes = [pair.factor * old, new, *(pair.factor * copy for copy in copies)]
    return dataclasses.replace(
        of_runs(*changes),
        last_place=rounding.last_place(after[0][pair.old], changes[0]),
    )
