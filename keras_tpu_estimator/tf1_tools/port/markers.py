"""The comments of a port: what a person has to write by hand."""

import dataclasses
import textwrap

import libcst as cst

_PREFIX = "# port: "


@dataclasses.dataclass(frozen=True)
class Marker:
    """A use of TensorFlow that a person has to write.

    Attributes:
        line: The line in the old file.
        name: The name that the site uses.
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
        first, *continued = textwrap.wrap(
            self.text,
            width - len(_PREFIX),
            break_long_words=False,
            break_on_hyphens=False,
        )
        texts = [f"{_PREFIX}{first}", *(f"#     {line}" for line in continued)]
        return [cst.EmptyLine(comment=cst.Comment(text)) for text in texts]
