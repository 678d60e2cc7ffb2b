"""How the variables of a model lie on the cores of a replica."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any
from typing import Self
from typing import TypeAlias

Axes: TypeAlias = tuple[str | None, ...]
Rules: TypeAlias = tuple[tuple[str, Axes], ...]

# What layouts call the cores of a replica.
MODEL_AXIS = "model"

# Elements below which a variable is not worth its communication.
_LARGE = 2**14


@dataclasses.dataclass(frozen=True)
class VariableLayout:
    """Which dimensions of which variables are split over which mesh axes.

    Attributes:
        sizes: Names and sizes of the axes that the cores of a replica lie on.
        replicas: Name and size of the axis of the replicas.
        rules: Patterns that whole paths match, and for each dimension the axis
            it is split over, or `None`. By default (`None`) large variables
            are split along their largest dimension.
        slots_are_shared: Whether replicas share what optimizers keep, too.
            Defaults to `False`.
    """

    sizes: tuple[tuple[str, int], ...]
    replicas: tuple[str, int]
    rules: Rules | None = None
    slots_are_shared: bool = False

    def over(self, shape: Mapping[str, int], per_replica: int) -> Self:
        """The same over fewer cores.

        Args:
            shape: The size of each axis of their mesh.
        """
        name, _ = self.replicas
        return dataclasses.replace(
            self,
            sizes=tuple(
                (axis, shape.get(axis, per_replica)) for axis, _ in self.sizes
            ),
            replicas=(name, shape[name]),
        )

    def axes(
        self, path: str, shape: tuple[int, ...], owner: str | None = None
    ) -> Axes:
        """The axes that the dimensions of a variable are split over.

        Args:
            path: Its path.
            shape: Its shape.
            owner: For a slot of an optimizer, the path of the variable of the
                same shape that it is about, as which it lies.

        Raises:
            ValueError: Several rules match, or a rule does not fit.
        """
        if self.rules is None:
            axes = self._by_size(shape)
        else:
            axes = self._by_rule(path if owner is None else owner, shape)
        if owner is not None and self.slots_are_shared:
            axes = self._over_replicas(axes, shape)
        return axes

    def unmatched(self, paths: Mapping[str, Any]) -> list[str]:
        """The patterns that no path matches."""
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
                f"At most one rule of `layout_map` should match {path!r}. "
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
        rule = f"the rule {pattern!r}: {axes}"
        if len(axes) > len(shape):
            raise ValueError(
                f"A rule of `layout_map` should have an axis or None for each "
                f"dimension. Received: {rule}, which matches {path!r} of shape "
                f"{shape}."
            )
        for dimension, axis in zip(shape, axes, strict=False):
            if axis is None:
                continue
            if axis not in sizes:
                raise ValueError(
                    "A rule of `layout_map` should name the axes of a "
                    f"replica's cores, {[*sizes]}. Received: {rule}."
                )
            if dimension % sizes[axis]:
                raise ValueError(
                    f"The axis {axis!r} of {sizes[axis]} cores should divide "
                    f"the dimension it splits. Received: {rule}, which matches "
                    f"{path!r} of shape {shape}. Split another dimension, or "
                    "change the shape."
                )

    def _by_size(self, shape: tuple[int, ...]) -> Axes:
        """The largest dimension that can be split is, if all is large."""
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
                # Of equal ones the last, which is the layer's outputs.
                axes[max(free, key=lambda number: (shape[number], number))] = (
                    axis
                )
        return tuple(axes)

    def _over_replicas(self, axes: Axes, shape: tuple[int, ...]) -> Axes:
        """Splits one more dimension, over the axes of the batch."""
        name, replicas = self.replicas
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
    """The rules of a dict, or of a `keras.distribution.LayoutMap`.

    Args:
        layout_map: From patterns to tuples of axes, or to Keras's
            `TensorLayout`.
    """
    return tuple(
        (pattern, tuple(getattr(layout, "axes", layout)))
        for pattern, layout in layout_map.items()
    )
