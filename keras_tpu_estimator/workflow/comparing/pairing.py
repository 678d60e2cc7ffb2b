"""The variables of two programs, paired by name, by shape and by their owner."""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from keras_tpu_estimator.base.common.shown import some
from keras_tpu_estimator.engine.program.store import GLOBAL_STEP
from keras_tpu_estimator.files.warm_start import optimizer_state
from keras_tpu_estimator.workflow.comparing.records import VariableFacts

_KeyOf: TypeAlias = Callable[[VariableFacts], object]
# Names of variables that mean the same in different libraries.
_SYNONYMS = {
    "weights": "kernel",
    "w": "kernel",
    "depthwise_weights": "depthwise_kernel",
    "biases": "bias",
    "b": "bias",
    "scale": "gamma",
    "offset": "beta",
    "embedding": "embeddings",
    "embedding_table": "embeddings",
    "moving_var": "moving_variance",
    "var": "moving_variance",
    "mean": "moving_mean",
}


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two variables that hold the same value.

    Attributes:
        is_guess: Whether they were paired by shape and order only.
        factor: The new value is this many times the old one. It is `None` if that
            depends on a learning rate which is not constant.
    """

    old: str
    new: str
    is_guess: bool = False
    factor: float | None = 1.0


@dataclasses.dataclass(frozen=True)
class Pairing:
    """The pairs of two programs, and the variables without a counterpart."""

    pairs: tuple[Pair, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]

    @property
    def guesses(self) -> tuple[Pair, ...]:
        """The pairs that were made by shape and order only."""
        return tuple(pair for pair in self.pairs if pair.is_guess)

    def translate(self, paths: Iterable[str]) -> frozenset[str]:
        """Returns the paths in the new program of variables of the old one."""
        new = {pair.old: pair.new for pair in self.pairs}
        return frozenset(new.get(path, path) for path in paths)


def paired(
    old: Mapping[str, VariableFacts],
    new: Mapping[str, VariableFacts],
    mapping: Mapping[str, str] | None = None,
    rates: Mapping[str, float] | None = None,
) -> Pairing:
    """Pairs the variables of two programs.

    Args:
        old: Those of the old program, in the order in which it makes them.
        new: Those of the new program.
        mapping: Paths in the new program by those in the old one. Defaults to none.
        rates: The constant learning rates of both, by path. Defaults to none.

    Raises:
        ValueError: `mapping` has an unknown path.
    """
    mapping = mapping or {}
    _check(mapping, old, new)
    weights = _Pairs(
        [f for f in old.values() if _is_weight(f)],
        [f for f in new.values() if _is_weight(f)],
    )
    weights.add_by_key(lambda facts: mapping.get(facts.path, ""), lambda f: f.path)
    weights.add_by_key(lambda facts: facts.path, lambda facts: facts.path)
    weights.add_by_key(_plain_name, _plain_name)
    weights.add_by_unique_name()
    weights.add_by_order()
    slots = [*_slots(weights.pairs, old, new, rates or {})]
    pairs = (*weights.pairs, *slots)
    paired_old = {pair.old for pair in pairs} | {GLOBAL_STEP}
    paired_new = {pair.new for pair in pairs} | {GLOBAL_STEP}
    return Pairing(
        pairs,
        tuple(p for p in old if p not in paired_old and not _is_seed(old[p])),
        tuple(p for p in new if p not in paired_new and not _is_seed(new[p])),
    )


def _check(
    mapping: Mapping[str, str],
    old: Mapping[str, VariableFacts],
    new: Mapping[str, VariableFacts],
) -> None:
    for paths, variables, name in (
        (mapping.keys(), old, "keys"),
        (mapping.values(), new, "values"),
    ):
        unknown = sorted({*paths} - variables.keys())
        if unknown:
            raise ValueError(
                f"The {name} of `mapping` must be paths of variables of the "
                f"{'old' if variables is old else 'new'} program. Received: "
                f"{some(unknown)}. Choose from {some(sorted(variables))}."
            )


def _is_seed(facts: VariableFacts) -> bool:
    return "seed_generator" in facts.path or facts.dtype in ("uint32", "uint64")


def _is_weight(facts: VariableFacts) -> bool:
    return not (facts.is_slot or facts.path == GLOBAL_STEP or _is_seed(facts))


def _plain_name(facts: VariableFacts) -> str:
    """Returns a path with the same words in all libraries."""
    *scopes, last = facts.path.lower().split("/")
    last = _SYNONYMS.get(last, last)
    return "/".join([*(s for s in scopes if s not in ("model", "layers")), last])


def _layer_name(facts: VariableFacts) -> str:
    """Returns the names of a variable and its layer, without the scopes around it."""
    return "/".join(_plain_name(facts).split("/")[-2:])


class _Pairs:
    """Pairs so far, and the variables that remain."""

    def __init__(self, old: Sequence[VariableFacts], new: Sequence[VariableFacts]):
        self._old, self._new = [*old], [*new]
        self.pairs: list[Pair] = []

    def _add(
        self, old: VariableFacts, new: VariableFacts, is_guess: bool = False
    ) -> None:
        self.pairs.append(Pair(old.path, new.path, is_guess))
        self._old.remove(old)
        self._new.remove(new)

    def add_by_key(self, old_key: _KeyOf, new_key: _KeyOf) -> None:
        """Pairs variables of equal sizes with equal keys."""
        by_key = {new_key(facts): facts for facts in self._new}
        for old in [*self._old]:
            new = by_key.get(old_key(old))
            if new is not None and new in self._new and _size(old) == _size(new):
                self._add(old, new)

    def add_by_unique_name(self) -> None:
        """Pairs variables of equal sizes whose layers have a name that no other has."""
        olds, news = (_grouped(facts, _layer_name) for facts in (self._old, self._new))
        for name, group in olds.items():
            pair = (*group, *news.get(name, ()))
            if len(group) == 1 and len(pair) == 2 and _size(pair[0]) == _size(pair[1]):
                self._add(*pair)

    def add_by_order(self) -> None:
        """Pairs variables whose shapes come in the same order, or equally often."""
        for shape_of in (_shape, _squeezed, _size):
            olds = _grouped(self._old, shape_of)
            news = _grouped(self._new, shape_of)
            for key, group in olds.items():
                if len(group) == len(news.get(key, ())):
                    for old, new in zip(group, news[key], strict=True):
                        self._add(old, new, is_guess=True)


def _shape(facts: VariableFacts) -> object:
    last = _plain_name(facts).rpartition("/")[2]
    return facts.is_trainable, facts.shape, last


def _squeezed(facts: VariableFacts) -> object:
    return facts.is_trainable, tuple(size for size in facts.shape if size != 1)


def _size(facts: VariableFacts) -> int:
    return int(np.prod(facts.shape))


def _grouped(
    variables: Iterable[VariableFacts], key_of: _KeyOf
) -> dict[object, list[VariableFacts]]:
    groups: dict[object, list[VariableFacts]] = collections.defaultdict(list)
    for facts in variables:
        groups[key_of(facts)].append(facts)
    return groups


def _slots(
    weights: Sequence[Pair],
    old: Mapping[str, VariableFacts],
    new: Mapping[str, VariableFacts],
    rates: Mapping[str, float],
) -> Iterator[Pair]:
    """Yields pairs of the optimizer state of paired variables."""
    olds, news = _states(old), _states(new)
    for path in old.keys() & new.keys():
        if old[path].is_slot and old[path].owner is None and new[path].owner is None:
            # Such as the optimizer's count of steps.
            yield Pair(path, path)
    for pair in weights:
        of_old, of_new = olds.get(pair.old, {}), news.get(pair.new, {})
        for meaning in of_old.keys() & of_new.keys():
            state, new_state = of_old[meaning], of_new[meaning]
            factor = optimizer_state.factor_between(state, new_state, rates)
            yield Pair(state.path, new_state.path, factor=factor)


def _states(
    variables: Mapping[str, VariableFacts],
) -> dict[str, dict[str, optimizer_state.State]]:
    """Returns the optimizer state of variables by their paths and by its meaning."""
    owners = {
        facts.path: facts.owner
        for facts in variables.values()
        if facts.owner is not None
    }
    return optimizer_state.states_of(owners)
