"""Rows and sections of the table of counterparts."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Row:
    """Names of TensorFlow 1 that a port replaces in one way.

    Attributes:
        names: What to write in place of each name, as Markdown. A name that
            ends in ".*" stands for all below it that have no row.
        before: What the page shows in place of the names. Defaults to none.
        now: What it shows in place of what to write. Defaults to none.
        note: What else has to be known. Defaults to none.

    Raises:
        ValueError: One is no name of TensorFlow, or there is nothing to show.
    """

    names: Mapping[str, str]
    before: str = ""
    now: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        wrong = [name for name in self.names if not name.startswith("tf.")]
        if wrong or not (self.names or (self.before and self.now)):
            raise ValueError(
                "`names` should start with 'tf.', and without any a row needs "
                f"`before` and `now`. Received: {wrong or self}"
            )

    def cells(self) -> tuple[str, str]:
        """What the page shows in its two columns."""
        before = self.before or ", ".join(f"`{name}`" for name in self.names)
        now = self.now or ", ".join(dict.fromkeys(self.names.values()))
        return before, "; ".join(filter(None, (now, self.note)))


def same(
    prefix: str, counterpart: str, names: str, note: str = "", before: str = ""
) -> Row:
    """A row of names that are the same in another module.

    Args:
        prefix: The module in TensorFlow.
        counterpart: The module to use in its place.
        names: The names, with spaces between.
        note: As in `Row`.
        before: As in `Row`.

    Example:

    >>> same("tf.nn", "keras.ops", "relu elu").cells()
    ('`tf.nn.relu`, `tf.nn.elu`', '`keras.ops.relu`, `keras.ops.elu`')
    """
    return Row(
        {
            f"{prefix}.{name}": f"`{counterpart}.{name}`"
            for name in names.split()
        },
        before=before,
        now=f"the same in `{counterpart}`" if before else "",
        note=note,
    )


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the table.

    Attributes:
        anchor: Of the heading on the page that has it.
        rows: What is in it.
    """

    anchor: str
    rows: tuple[Row, ...]

    def markdown(self) -> str:
        """The table as the page has it."""
        lines = ["| before | now |", "|---|---|"]
        lines += [f"| {before} | {now} |" for before, now in self._cells()]
        return "\n".join(lines)

    def _cells(self) -> list[tuple[str, str]]:
        # A bar would end the cell.
        return [
            (before.replace("|", "\\|"), now.replace("|", "\\|"))
            for before, now in (row.cells() for row in self.rows)
        ]
