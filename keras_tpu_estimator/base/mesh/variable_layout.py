"""The sharding of a model's variables over the cores of a replica."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, Self, TypeAlias

Axes: TypeAlias = tuple[str | None, ...]
Rules: TypeAlias = tuple[tuple[str, Axes], ...]

# The axis of a replica's cores in layouts.
MODEL_AXIS = "model"

# Sharding a variable with fewer elements does not pay for its communication.
# `docs/large_models.md` states this number.
_LARGE = 2**14


@dataclasses.dataclass(frozen=True)
class VariableLayout:
    """The mesh axes over which the dimensions of variables are split.

    Attributes:
        sizes: The names and sizes of the axes of a replica's cores.
        replicas: The name and size of the axis of replicas, those of a slice.
        rules: Patterns for complete paths, with an axis or `None` for each dimension.
            Without rules, large variables are split along their largest dimension.
        optimizer_is_sharded: Whether optimizer state is also sharded over replicas.
        is_fsdp: Whether large variables and their optimizer state are also sharded over
            replicas.
    """

    sizes: tuple[tuple[str, int], ...]
    replicas: tuple[str, int]
    rules: Rules | None = None
    optimizer_is_sharded: bool = False
    is_fsdp: bool = False

    def over(self, shape: Mapping[str, int], per_replica: int) -> Self:
        """Returns the same layout for fewer cores, whose mesh has this shape."""
        name, _ = self.replicas
        return dataclasses.replace(
            self,
            sizes=tuple((axis, shape.get(axis, per_replica)) for axis, _ in self.sizes),
            replicas=(name, shape[name]),
        )

    def axes(self, path: str, shape: tuple[int, ...], owner: str | None = None) -> Axes:
        """Returns the axes over which a variable's dimensions are split.

        Several matching rules, or one that does not fit, raise a `ValueError`.

        Args:
            owner: For optimizer state, the path of its variable, which has the same
                shape and layout.
        """
        if self.rules is None:
            axes = self._by_size(shape)
        else:
            axes = self._by_rule(path if owner is None else owner, shape)
        is_shared_slot = self.optimizer_is_sharded and owner is not None
        if is_shared_slot or (self.is_fsdp and math.prod(shape) >= _LARGE):
            axes = self._over_replicas(axes, shape)
        return axes

    def unmatched(self, paths: Mapping[str, Any]) -> list[str]:
        """Returns the patterns that match no path."""
        return [
            pattern
            for pattern, _ in self.rules or ()
            if not any(re.fullmatch(pattern, path) for path in paths)
        ]

    def _by_rule(self, path: str, shape: tuple[int, ...]) -> Axes:
        matching = [
            (pattern, axes)
            for pattern, axes in self.rules or ()
            if re.fullmatch(pattern, path)
        ]
        if not matching:
            return ()
        if len(matching) > 1:
            raise ValueError(
                f"At most one rule of `layout_map` must match {path!r}. "
                f"Received: {[pattern for pattern, _ in matching]}. Make them "
                "more specific."
            )
        ((pattern, axes),) = matching
        self._check(pattern, axes, path, shape)
        return axes

    def _check(
        self, pattern: str, axes: Axes, path: str, shape: tuple[int, ...]
    ) -> None:
        """Checks that a rule fits a variable."""
        sizes = dict(self.sizes)
        if self.is_fsdp:
            sizes |= {self.replicas[0]: self.replicas[1]}
        rule = f"the rule {pattern!r}: {axes}"
        if len(axes) > len(shape):
            raise ValueError(
                f"A rule of `layout_map` must have an axis or None for each "
                f"dimension. Received: {rule}, which matches {path!r} of shape "
                f"{shape}. Remove an axis, or make the pattern more specific."
            )
        for dimension, axis in zip(shape, axes, strict=False):
            if axis is None:
                continue
            if axis not in sizes:
                raise ValueError(
                    f"A rule of `layout_map` must name the axes {[*sizes]}. "
                    f"Received: {rule}. Use None for a dimension that is not "
                    "sharded."
                )
            if dimension % sizes[axis]:
                raise ValueError(
                    f"The axis {axis!r} of size {sizes[axis]} must divide "
                    f"the dimension it splits. Received: {rule}, which matches "
                    f"{path!r} of shape {shape}. Split another dimension, or "
                    "change the shape."
                )

    def _by_size(self, shape: tuple[int, ...]) -> Axes:
        """Splits the largest divisible dimension of a large variable."""
        if len(shape) < 2 or math.prod(shape) < _LARGE:
            return ()
        axes: list[str | None] = [None] * len(shape)
        for axis, cores in self.sizes:
            free = [
                number
                for number, size in enumerate(shape)
                if axes[number] is None and size % cores == 0
            ]
            if free:
                # Among equal dimensions, the last one is that of outputs.
                axes[max(free, key=lambda number: (shape[number], number))] = axis
        return tuple(axes)

    def _over_replicas(self, axes: Axes, shape: tuple[int, ...]) -> Axes:
        """Splits one more dimension over the replicas."""
        name, replicas = self.replicas
        if name in axes:
            return axes
        full = [*axes, *[None] * (len(shape) - len(axes))]
        free = [
            number
            for number, size in enumerate(shape)
            if full[number] is None and size % replicas == 0
        ]
        if free:
            full[free[0]] = name
        return tuple(full)


def rules_of(layout_map: Mapping[str, Any]) -> Rules:
    """Returns the rules of a dict, or of a `keras.distribution.LayoutMap`."""
    return tuple(
        (pattern, tuple(getattr(layout, "axes", layout)))
        for pattern, layout in layout_map.items()
    )
