"""Tests that verdicts agree with the pages about differences from TensorFlow 1.15."""

import pathlib
import re

import pytest
from limits import PROGRAMS, ROWS
from test_arguments import verdict_of

DOCS = pathlib.Path(__file__).parents[2] / "docs"
ABOUT_CODE = {
    f"{page}: {row}": code
    for (page, _), rows in ROWS.items()
    for row, code in rows.items()
    if code is not None
}


@pytest.mark.parametrize(("page", "heading"), ROWS)
def test_each_row_of_a_page_is_listed(page, heading) -> None:
    text = (DOCS / f"{page}.md").read_text()
    part = text.split(f"{heading}\n")[1].split("\n## ")[0].split("\n### ")[0]
    _, *found = re.findall(r"(?m)^\| ((?:\\\||[^|])*) \|", part)
    begun = [*ROWS[page, heading]]
    assert len(found) == len(begun)
    for row, beginning in zip(found, begun, strict=True):
        assert row.startswith(beginning)


@pytest.mark.parametrize("name", [*ABOUT_CODE, *PROGRAMS])
def test_verdict_is_that_of_the_page(name, tmp_path) -> None:
    code = {**ABOUT_CODE, **PROGRAMS}[name]
    path = tmp_path / "main.py"
    path.write_text(code.text)
    assert verdict_of(path).value == code.verdict
