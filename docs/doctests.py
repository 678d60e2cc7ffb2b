"""Shows the examples in docstrings as code, wherever they stand."""

import re
import textwrap
from typing import Any

import griffe

# A prompt, and everything up to the next empty line.
_EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*(?:\n *\S.*)*", re.MULTILINE)


class FencedDoctests(griffe.Extension):
    """Puts fences around the doctests of every docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Changes the docstring of an object, if it has one."""
        del kwargs
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(example: re.Match[str]) -> str:
    code = textwrap.dedent(example.group())
    return textwrap.indent(f"```pycon\n{code}\n```", example["indent"])
