"""What a program holds in the memory of each core."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from keras_tpu_estimator.ground.base.types import Nest
from keras_tpu_estimator.planning.array_types import ArrayType, dtype_name
from keras_tpu_estimator.planning.hlo import Module


@dataclasses.dataclass(frozen=True)
class Held:
    """Arrays of one kind, on each core.

    Attributes:
        logical: The bytes of their elements.
        real: Those that they take, where they are padded to whole tiles.
    """

    logical: int
    real: int


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of memory on each core.

    Attributes:
        arguments: What the program is given, by kind, as who asked for it
            named them, and "unnamed" for what is left.
        results: What it returns in memory of its own.
        temporary: What it holds meanwhile; `None` if the compiler does not say.
        code: Its instructions, which are no part of what programs can have.
        limit: What programs can have.
        beside: What else is on the core meanwhile, by kind, such as batches
            that are staged ahead. Defaults to nothing.

    Example:

    >>> from keras_tpu_estimator.planning.memory import Held
    >>> from keras_tpu_estimator.planning.memory import Memory
    >>> memory = Memory({"input": Held(30, 32)}, 8, 60, 0, limit=200)
    >>> memory.peak, memory.share
    (100, 0.5)
    """

    arguments: Mapping[str, Held]
    results: int | None
    temporary: int | None
    code: int | None
    limit: int
    beside: Mapping[str, Held] = dataclasses.field(default_factory=dict)

    @property
    def held(self) -> dict[str, Held]:
        """Its arguments and what is beside it, by kind."""
        return {**self.arguments, **self.beside}

    @property
    def peak(self) -> int | None:
        """What it takes of that; `None` if it is not known."""
        if self.results is None or self.temporary is None:
            return None
        given = sum(held.real for held in self.held.values())
        return given + self.results + self.temporary

    @property
    def share(self) -> float | None:
        """That as a share of what there is."""
        return None if self.peak is None else self.peak / self.limit


def of(
    compiled: jax.stages.Compiled,
    module: Module,
    arguments: Mapping[str, Nest],
    limit: int,
) -> Memory:
    """The memory of a program.

    Args:
        compiled: The program.
        module: The same, read.
        arguments: What it takes, by kind: nests of shapes with shardings.
        limit: Bytes that a program can have on a core.
    """
    kinds = held(arguments, module)
    stats = compiled.memory_analysis()
    if stats is None:
        return Memory(kinds, None, None, None, limit)
    named = sum(each.real for each in kinds.values())
    rest = max(0, stats.argument_size_in_bytes - named)
    return Memory(
        kinds | ({"unnamed": Held(rest, rest)} if rest else {}),
        stats.output_size_in_bytes - stats.alias_size_in_bytes,
        # What is in a core's small memory is no part of it.
        stats.temp_size_in_bytes,
        stats.generated_code_size_in_bytes,
        limit,
    )


def held(arguments: Mapping[str, Nest], module: Module | None) -> dict[str, Held]:
    """What arguments take on each core.

    Args:
        arguments: Nests of shapes with shardings, by kind.
        module: The program that takes them, which says how they are padded, or
            `None` if there is none.
    """
    padded = {
        _key(dtype_name(array.dtype), array.shape): array
        for array in (module and module.parameters) or ()
    }
    return {
        kind: total([_held(leaf, padded) for leaf in jax.tree.leaves(nest)])
        for kind, nest in arguments.items()
    }


def total(each: Iterable[Held]) -> Held:
    """The bytes of several kinds together.

    Example:

    >>> total([Held(30, 32), Held(5, 8)])
    Held(logical=35, real=40)
    """
    several = [*each]
    return Held(
        sum(held.logical for held in several),
        sum(held.real for held in several),
    )


def _held(leaf: Any, padded: Mapping[tuple[str, tuple[int, ...]], ArrayType]) -> Held:
    shape = tuple(leaf.shape)
    dtype: Any = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
    if getattr(leaf, "sharding", None) is not None:
        shape = leaf.sharding.shard_shape(shape)
    logical = math.prod(shape) * dtype.itemsize
    array = padded.get(_key(str(dtype), shape))
    return Held(logical, array.padded_bytes if array else logical)


def _key(dtype: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    # XLA's names of narrow dtypes have no underscores.
    return dtype.replace("_", ""), shape
