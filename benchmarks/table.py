"""The results of a benchmark, their goals, and the printed table."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Literal

_HEADINGS = ("measure", "ours", "peer", "ratio", "must reach", "ok?")


@dataclasses.dataclass(frozen=True)
class Goal:
    """The bounds of one quantity of a row.

    Attributes:
        of: The bounded value, `ours / peer`, `ours`, or `ours - peer`.
        least: The lower bound. Defaults to none.
        most: The upper bound. Defaults to none.
    """

    of: Literal["ratio", "ours", "excess"]
    least: float = -math.inf
    most: float = math.inf

    def is_met(self, ours: float, peer: float) -> bool:
        """Whether both bounds hold."""
        quantity = {
            "ratio": ours / peer,
            "ours": ours,
            "excess": ours - peer,
        }[self.of]
        return self.least <= quantity <= self.most

    def text(self, unit: str) -> str:
        """The bounds in words."""
        if self.of == "ours":
            return f"<= {self.most:g} {unit}"
        if self.of == "excess":
            return f"<= {self.most:g} {unit} more"
        if math.isinf(self.most):
            return f">= {self.least:.2f}"
        if math.isinf(self.least):
            return f"<= {self.most:.2f}"
        return f"{self.least:.2f} to {self.most:.2f}"


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        measure: The measured quantity and the peer.
        ours: The value of this package.
        peer: The value to compare with.
        unit: The unit of both values.
        goal: The bounds to reach.
    """

    measure: str
    ours: float
    peer: float
    unit: str
    goal: Goal

    @property
    def is_ok(self) -> bool:
        """Whether the goal was reached."""
        return self.goal.is_met(self.ours, self.peer)

    def cells(self) -> tuple[str, ...]:
        """The line's texts, in the order of the headings."""
        return (
            self.measure,
            f"{_figure(self.ours)} {self.unit}",
            f"{_figure(self.peer)} {self.unit}",
            f"{self.ours / self.peer:.2f}",
            self.goal.text(self.unit),
            "yes" if self.is_ok else "NO",
        )


def render(rows: Iterable[Row]) -> str:
    """The table of all rows, aligned."""
    lines = [_HEADINGS, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, tuple("-" * width for width in widths))
    return "\n".join(_aligned(cells, widths) for cells in lines)


def _aligned(cells: tuple[str, ...], widths: list[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    padded = [first[0].ljust(first[1])]
    padded += [cell.rjust(width) for cell, width in others]
    return "| " + " | ".join(padded) + " |"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
