"""Hooks of MkDocs that insert code and output of `examples/` into pages.

`<!-- code: examples/digits.py model_fn -->` inserts functions of a program or of
`docs/snippets`, whose code the tests run before that of the page.
`<!-- output: digits -->` inserts the output of a program,
`<!-- diff: one.py other.py -->` the difference between two, and
`<!-- file: CHANGELOG.md -->` another file.
"""

import ast
import difflib
import pathlib
import re
import textwrap
from collections.abc import Callable
from html import unescape
from importlib import metadata
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
_DIRECTIVE = re.compile(r"(?m)^( *)<!-- (code|output|diff|file): (.+) -->$")
_MOST_LINES = 34
# Code in the text, behind that in blocks, which is left as it is.
_IN_TEXT = re.compile(r"(?s)<pre.*?</pre>|(<code[^>]*>)(.*?)</code>")
# A word, and how long one may be that has room in a table on a telephone.
_HYPHENED = re.compile(r"<[^>]*>|([^\s<>-]*-[^\s<>]*)")
_NARROW = 26


def on_config(config: Any) -> Any:
    """Puts the version beside the name, and below the page."""
    package = metadata.metadata("keras-tpu-estimator")
    version, license = package["Version"], package["License-Expression"]
    config.site_name = f"{config.site_name} {version}"
    config.copyright = f"Version {version}, {license}"
    return config


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """A page with what it includes."""
    del kwargs

    def included(found: re.Match[str]) -> str:
        text = _INCLUDED[found[2]](*found[3].split())
        return textwrap.indent(text, found[1])

    return _DIRECTIVE.sub(included, markdown)


def on_page_content(html: str, **kwargs: Any) -> str:
    """A page where no line ends at the hyphen of an option or a file.

    No style prevents browsers from breaking a line only there.
    """
    del kwargs

    def whole(word: re.Match[str]) -> str:
        if word[1] is None or len(unescape(word[1])) > _NARROW:
            return word[0]
        return f'<span class="whole">{word[1]}</span>'

    def of_whole_words(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0]
        return f"{found[1]}{_HYPHENED.sub(whole, found[2])}</code>"

    return _IN_TEXT.sub(of_whole_words, html)


def code(path: str, *names: str) -> str:
    """Returns functions, classes and constants of a file, or all of it.

    Args:
        path: The file, from the root of the project.
        *names: The names to show, in this order. Defaults to all.

    Raises:
        ValueError: The file has nothing of such a name.
    """
    text = (ROOT / path).read_text("utf-8")
    if not names:
        return _fenced("python", text, path)
    lines = text.splitlines()
    nodes = {name: node for node in ast.parse(text).body for name in _of(node)}
    if missing := [name for name in names if name not in nodes]:
        raise ValueError(
            f"{path} should have what a page shows of it. Received: {missing}. "
            f"It has {sorted(nodes)}."
        )
    parts = [
        "\n".join(lines[nodes[name].lineno - 1 : nodes[name].end_lineno])
        for name in names
    ]
    return _fenced("python", "\n\n\n".join(parts), path)


def file(path: str) -> str:
    """A drawing, or another page, as it is."""
    return (ROOT / path).read_text("utf-8").strip("\n")


def output(name: str) -> str:
    """Returns the output of an example, without the middle if it is long."""
    text = (ROOT / "docs" / "outputs" / f"{name}.txt").read_text("utf-8")
    lines = text.splitlines()
    if len(lines) > _MOST_LINES:
        half = _MOST_LINES // 2
        lines[half:-half] = ["..."]
    return _fenced("text", "\n".join(lines))


def diff(before: str, after: str) -> str:
    """The lines that two programs do not have in common."""
    old, new = (
        (ROOT / each).read_text("utf-8").splitlines() for each in (before, after)
    )
    changes = list(difflib.unified_diff(old, new, before, after, "", "", 1, ""))
    gone = sum(line.startswith("-") for line in changes[2:])
    come = sum(line.startswith("+") for line in changes[2:])
    return f"{gone} of {len(old)} lines go, and {come} come.\n\n" + _fenced(
        "diff", "\n".join(changes[2:])
    )


def _of(node: ast.stmt) -> list[str]:
    """The names that a statement makes."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [each.id for each in node.targets if isinstance(each, ast.Name)]
    return []


def _fenced(language: str, text: str, title: str | None = None) -> str:
    named = f' title="{title}"' if title else ""
    return f"```{{ .{language}{named} }}\n{text.rstrip()}\n```"


_INCLUDED: dict[str, Callable[..., str]] = {
    "code": code,
    "output": output,
    "diff": diff,
    "file": file,
}
