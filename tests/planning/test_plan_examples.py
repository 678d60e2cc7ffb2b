"""The plans of examples match the pages."""

import pathlib
import re
import subprocess
import sys
import textwrap
from importlib import metadata

import pytest

pytestmark = pytest.mark.usefixtures("forked_programs")

ROOT = pathlib.Path(__file__).parents[2]
# The column of the table in which the numbers begin.
_FIGURES = len("a step on a core computes   ")


def planned(name, *arguments):
    """The output of the command, without its duration."""
    done = subprocess.run(
        [sys.executable, "-m", "keras_tpu_estimator", "plan"]
        + [f"examples/{name}.py", "--topology", "v5e:2x2", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_digits():
    lines = planned("digits").splitlines()
    modes = [line.split()[3] for line in lines if line.startswith("Plan of")]
    assert modes == ["'train'", "'eval'", "'infer'"]
    assert "accuracy on 360 held-out images: nan" in lines
    # The page shows the first of them; the time is another each time.
    page = (ROOT / "docs" / "plan.md").read_text()
    (shown,) = re.findall(r"(?m)^    Plan of(?:.+\n+(?=    ))+.+", page)
    shown = textwrap.dedent(shown).splitlines()
    compiled = ROOT / "docs" / "outputs" / "tpu_compiled.md"
    if f"libtpu {metadata.version('libtpu')}," not in compiled.read_text():
        # Other compilers report other numbers in these rows.
        rows = {line[:_FIGURES] for line in lines}
        assert {line[:_FIGURES] for line in shown} <= rows
        return
    for line, expected in zip(lines, shown, strict=False):
        assert line.partition("yes, in")[0] == expected.partition("yes, in")[0]


@pytest.mark.slow
def test_a_program_of_tf1():
    text = planned("tf1_mnist", "--use_tpu")
    assert text.count("compiles") == text.count("yes, in") == 3
    assert "all-reduce" in text
    assert "  slots  " in text
    assert "accuracy on held-out images: nan" in text
