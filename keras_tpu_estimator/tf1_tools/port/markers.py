"""The comments of a port: what a person has to write by hand."""

import dataclasses
import textwrap

import libcst as cst

_PREFIX = "# port: "


@dataclasses.dataclass(frozen=True)
class Marker:
    """A place that was left as it was.

    Attributes:
        line: The line in the old file.
        name: The name that the place uses.
        advice: What a person has to write, as a clause.
    """

    line: int
    name: str
    advice: str

    @property
    def text(self) -> str:
        """The text of the comment."""
        return f"{self.name}: {self.advice}"

    def lines(self, width: int) -> list[cst.EmptyLine]:
        """Returns the comment, wrapped to a width."""
        first, *others = textwrap.wrap(
            self.text,
            width - len(_PREFIX),
            break_long_words=False,
            break_on_hyphens=False,
        )
        texts = [f"{_PREFIX}{first}", *(f"#     {line}" for line in others)]
        return [cst.EmptyLine(comment=cst.Comment(text)) for text in texts]
