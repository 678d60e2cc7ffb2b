"""Tests the progress line of a notebook with a simulated clock."""

import sys
import types

import pytest

from keras_tpu_estimator.api.hooks import progress
from keras_tpu_estimator.api.hooks.progress import NotebookProgress
from keras_tpu_estimator.base.common import notebook, waiting


def shown(runs, steps, batch_size=32, start=0):
    """The lines for runs that end at given steps and seconds."""
    lines, now = [], [100.0]
    display = NotebookProgress(
        start, steps, batch_size, "step", lines.append, lambda: now[0]
    )
    for step, second in runs:
        now[0] = 100.0 + second
        display.show(step, lambda: 0.123456)
    display.show(step, lambda: 0.123456, is_end=True)
    return [repr(line) for line in lines], lines


def test_lines_of_training():
    # The first run is compiled; then ten steps take a second.
    runs = [(10, 60.0), (20, 61.0), (30, 62.0), (100, 69.0)]
    texts, lines = shown(runs, steps=100)
    assert texts == [
        "step 0 of 100",
        "step 10 of 100, loss 0.1235, 0.167 steps/s, 5.33 examples/s, 9:00 left",
        "step 20 of 100, loss 0.1235, 10 steps/s, 320 examples/s, 8.0 s left",
        "step 30 of 100, loss 0.1235, 10 steps/s, 320 examples/s, 7.0 s left",
        "step 100 of 100, loss 0.1235, 10 steps/s, 320 examples/s, 0.0 s left",
        "step 100 of 100, loss 0.1235, 10 steps/s, 320 examples/s, 1:09 in total",
    ]
    assert 'value="0.3000"' in lines[3]._repr_html_()


def test_fast_runs_are_not_all_shown():
    runs = [(n, 1 + n / 1000) for n in range(1, 1001)]
    assert len(shown(runs, steps=1000)[0]) < 10


def test_line_without_a_limit_and_batch_size():
    texts, lines = shown([(15, 1.0), (20, 7203.0)], None, None, start=10)
    assert texts[0] == "step 10"
    assert texts[-1] == "step 20, loss 0.1235, 0.000694 steps/s, 2:00:03 in total"
    assert "<progress" not in lines[-1]._repr_html_()


class Shell:
    """An IPython shell with or without a kernel."""

    def __init__(self, **kernel):
        self.execution_count = 1
        vars(self).update(kernel)


class Place:
    def __init__(self, first):
        self.lines = [first]

    def update(self, line):
        self.lines.append(line)


@pytest.fixture
def places(monkeypatch):
    """The displayed text in a notebook's shell."""
    made = []

    def display(line, display_id):
        assert display_id is True
        made.append(Place(line))
        return made[-1]

    shell = Shell(kernel=object())
    ipython = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(
        sys.modules, "IPython.display", types.SimpleNamespace(display=display)
    )
    made_in = types.SimpleNamespace(made=made, shell=shell)
    yield made_in
    notebook.leave()


def texts(place):
    return [repr(line) for line in place.lines]


def test_each_cell_and_call_has_one_line(places):
    notebook.show(notebook.Line("one"))
    notebook.show(notebook.Line("two"))
    notebook.leave()
    notebook.show(notebook.Line("three"))
    places.shell.execution_count += 1
    notebook.show(notebook.Line("four"))
    assert [texts(place) for place in places.made] == [
        ["one", "two"],
        ["three"],
        ["four"],
    ]


@pytest.mark.parametrize("is_shown", [True, False])
def test_line_is_shown_during_a_long_run(places, is_shown):
    with waiting.Waiting(is_shown):
        waiting.announce("Compiling")
    notebook.clear()  # Nothing remains to be cleared.
    told = [text for place in places.made for text in texts(place)]
    assert told == (["Compiling ...", ""] if is_shown else [])


def test_markup_in_text_is_escaped():
    assert "&lt;b&gt;" in notebook.Line("<b>")._repr_html_()
    assert notebook.Line("")._repr_html_() == ""


def test_progress_is_on_in_a_notebook(places):
    assert progress.shows_progress("auto")
    assert not progress.shows_progress(False)
    assert isinstance(progress.started(0, 10, 4), NotebookProgress)
    shown = progress.prediction_started("auto", 4)
    assert isinstance(shown, NotebookProgress)
    shown.hide()  # The user's output is displayed separately.
    shown.show(3, None, is_end=True)
    assert repr(places.made[-1].lines[-1]).startswith("predicted batch 3, ")


def test_ipython_terminal_is_not_a_notebook(monkeypatch):
    ipython = types.SimpleNamespace(get_ipython=Shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert not notebook.is_here()
    assert isinstance(progress.started(0, 10, 4), progress.ProgressBar)
