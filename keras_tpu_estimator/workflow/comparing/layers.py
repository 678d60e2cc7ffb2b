"""The layer in which two forward passes begin to differ."""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from keras_tpu_estimator.base.common.shown import some
from keras_tpu_estimator.base.common.user_code import SourceLine
from keras_tpu_estimator.workflow.comparing.dataflow import INPUT, Dataflow, Operation

Variables = frozenset[str]


@dataclasses.dataclass(frozen=True)
class LayerDifference:
    """The first layer whose output differs.

    Attributes:
        variables: The paths of the new program's variables that the layer reads; none
            before the first layer.
        following: The paths that the next layers read; none before the loss.
        differs: The first operation of the new program with another result.
        old_line: The line of the old program's operation of the same layer, or `None`.
    """

    variables: tuple[str, ...]
    following: tuple[str, ...]
    differs: Operation
    old_line: SourceLine | None

    def __str__(self) -> str:
        after = some([f"`{v}`" for v in self.variables]) or "the input"
        before = some([f"`{v}`" for v in self.following]) or "the loss"
        place = "" if self.differs.line is None else f" at {self.differs.line}"
        text = (
            f"The forward passes are equal up to {after}, and differ before {before}: "
            f"first in the result of `{self.differs.name}`{place}."
        )
        if self.old_line is not None:
            text += f" The old program computes this layer up to {self.old_line}."
        return text


@dataclasses.dataclass(frozen=True)
class _Group:
    """The operations that depend on the same variables, by their numbers."""

    variables: Variables
    numbers: tuple[int, ...]


def first_difference(
    old: Dataflow,
    new: Dataflow,
    translate: Callable[[Iterable[str]], Variables],
    trained: Variables,
    tolerance: float,
) -> LayerDifference | None:
    """Returns the first layer whose output differs, or `None` if all are equal.

    Args:
        translate: Returns the new paths of variables of the old program.
        trained: The new paths of the variables that are trained.
        tolerance: The relative difference up to which statistics are equal.
    """
    # TensorFlow's fused batch normalization receives the moving averages in training,
    # on which its result does not depend.
    of_one = translate(_variables_of(old)) ^ _variables_of(new)
    ignored = of_one - trained - {INPUT}
    olds = {
        group.variables: group
        for group in _groups(old, lambda paths: translate(paths) - ignored)
    }
    # Values that depend on no batch are part of the layer that uses them.
    news = [
        group
        for group in _groups(new, lambda paths: frozenset(paths) - ignored)
        if INPUT in group.variables
    ]
    distances = {
        group.variables: _distance(old, olds.get(group.variables), new, group)
        for group in news
    }
    equal = {v for v, distance in distances.items() if distance <= tolerance}
    for group in news:
        if group.variables in equal or any(group.variables < v for v in equal):
            continue
        return _described(group, old, olds.get(group.variables), new, tolerance)
    return None


def _variables_of(flow: Dataflow) -> Variables:
    return frozenset().union(*(one.variables for one in flow.operations))


def _groups(
    flow: Dataflow, translate: Callable[[Iterable[str]], Variables]
) -> list[_Group]:
    """Returns the groups in the order of their last operations."""
    numbers: dict[Variables, list[int]] = collections.defaultdict(list)
    for number, operation in enumerate(flow.operations):
        numbers[translate(operation.variables)].append(number)
    groups = [_Group(v, tuple(n)) for v, n in numbers.items()]
    return sorted(groups, key=lambda group: group.numbers[-1])


def _distance(
    old: Dataflow, old_group: _Group | None, new: Dataflow, group: _Group
) -> float:
    """Returns the largest distance of a group's outputs from the old program's."""
    if old_group is None:
        return float("inf")
    outputs = [n for n in group.numbers if new.operations[n].crosses]
    return max(
        (_nearest(old, old_group.numbers, new, number) for number in outputs),
        default=0.0,
    )


def _nearest(
    old: Dataflow, candidates: Sequence[int], new: Dataflow, number: int
) -> float:
    """Returns the distance of a value from the nearest one of the old program."""
    size = new.operations[number].size
    alike = [n for n in candidates if old.operations[n].size == size]
    if not alike:
        return float("inf")
    value, values = new.statistics[number], old.statistics[alike]
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.maximum(np.abs(value).max(), np.abs(values).max(axis=1))
        gaps = np.abs(values - value).max(axis=1) / np.where(scale == 0, 1, scale)
    return float(np.min(np.nan_to_num(gaps, nan=0.0, posinf=np.inf)))


def _described(
    group: _Group,
    old: Dataflow,
    old_group: _Group | None,
    new: Dataflow,
    tolerance: float,
) -> LayerDifference:
    candidates = () if old_group is None else old_group.numbers
    gaps = {n: _nearest(old, candidates, new, n) for n in group.numbers}
    outputs = [n for n in group.numbers if new.operations[n].crosses]
    worst = max(outputs, key=gaps.__getitem__)
    first = worst
    # Within a layer, the operations of two programs may differ in form, so the search
    # begins at its output.
    while sources := [
        n for n in new.operations[first].sources if gaps.get(n, 0.0) > tolerance
    ]:
        first = sources[0]
    lines = [old.operations[n].line for n in candidates]
    return LayerDifference(
        _newest(group.variables, new.operations),
        _following(group, new.operations),
        new.operations[first],
        next((line for line in reversed(lines) if line is not None), None),
    )


def _newest(variables: Variables, operations: Sequence[Operation]) -> tuple[str, ...]:
    """Returns the variables that meet others last, among those of a layer's output."""
    met: dict[str, int] = {}
    for number, operation in enumerate(operations):
        if operation.variables <= variables and len(operation.variables) > 1:
            for variable in operation.variables:
                met.setdefault(variable, number)
    variables -= {INPUT}
    last = max((met.get(variable, 0) for variable in variables), default=0)
    return tuple(sorted(v for v in variables if met.get(v, 0) == last))


def _following(group: _Group, operations: Sequence[Operation]) -> tuple[str, ...]:
    """Returns the variables that the results of a group meet."""
    numbers = {*group.numbers}
    variables: set[str] = set()
    for operation in operations:
        if numbers.intersection(operation.sources):
            variables |= operation.variables - group.variables
    return tuple(sorted(variables))
