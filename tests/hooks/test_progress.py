"""Tests the progress bars of calls as a terminal shows them."""

import collections
import contextlib
import functools
import logging
import os
import pty
import re
import signal

import keras
import pytest
from helpers import batches_of, estimator_of, linear, model_fn_of, regression_data

import keras_tpu_estimator as kte
from keras_tpu_estimator.api.hooks import progress
from keras_tpu_estimator.base.common import waiting

OWN = logging.getLogger("keras_tpu_estimator")
X, Y = regression_data(64)
# Control sequences that move the cursor, and sequences that only color.
_SEQUENCE = re.compile(r"\x1b\[([\d;]*)([A-Za-z])|\x1b([78DM])|([\r\n\b])|(.)")


def screen(written):
    """The lines of a terminal that has received a text."""
    lines = collections.defaultdict(dict)
    row = column = 0
    kept = row, column
    for count, command, escape, control, character in _SEQUENCE.findall(written):
        if character:
            lines[row][column] = character
            column += 1
        elif command == "K":
            start = 0 if count == "2" else column
            lines[row] = {c: t for c, t in lines[row].items() if c < start}
        elif control == "\r":
            column = 0
        elif control == "\b":
            column = max(0, column - 1)
        elif control == "\n" or escape == "D":
            row += 1
        elif escape == "M":
            row -= 1
        elif escape == "7":
            kept = row, column
        elif escape == "8":
            row, column = kept
    return [_text(lines[row]) for row in range(max(lines, default=-1) + 1)]


def _text(line):
    width = max(line, default=-1) + 1
    return "".join(line.get(each, " ") for each in range(width)).rstrip()


class Terminal:
    """A pseudo terminal that records its output."""

    def __init__(self):
        self._reader, writer = pty.openpty()
        os.set_blocking(self._reader, False)
        self.stream = os.fdopen(writer, "w", buffering=1, encoding="utf-8")
        self._bytes = b""

    @property
    def written(self):
        while True:
            try:
                self._bytes += os.read(self._reader, 65536)
            except OSError:
                return self._bytes.decode()

    @property
    def lines(self):
        return screen(self.written)

    def close(self):
        self.stream.close()
        os.close(self._reader)


@pytest.fixture
def terminal():
    """A terminal for tests with `on_terminal`."""
    keras.config.enable_interactive_logging()
    terminal = Terminal()
    yield terminal
    waiting.finished()
    terminal.close()


@pytest.fixture
def logs_to(monkeypatch, caplog):
    """Logs warnings, and only to a stream."""

    def log_to(stream):
        # Another test may have set another level.
        caplog.set_level(logging.WARNING, OWN.name)
        monkeypatch.setattr(OWN, "handlers", [logging.StreamHandler(stream)])
        monkeypatch.setattr(OWN, "propagate", False)
        monkeypatch.setattr(OWN, "parent", None)

    return log_to


def on_terminal(test):
    """Prints everything on the terminal during the test."""

    @functools.wraps(test)
    def run(*args, terminal, **kwargs):
        with (
            contextlib.redirect_stdout(terminal.stream),
            contextlib.redirect_stderr(terminal.stream),
        ):
            test(*args, terminal=terminal, **kwargs)

    return run


def estimator(directory, **settings):
    """An estimator with loops of four steps."""
    return estimator_of(model_fn_of(linear), directory, **settings)


def repeated(params):
    while True:
        yield from batches_of(X, Y)(params)


def bars(text):
    """The positions of the bar that were drawn."""
    return re.findall(r"\d+/(?:\d+|Unknown)", text)


@pytest.mark.parametrize("counted", [{"max_steps": 16}, {"steps": 8}])
@on_terminal
def test_resumed_training_shows_its_global_step(tmp_path, terminal, counted):
    made = estimator(tmp_path)
    made.train(repeated, max_steps=8)
    assert bars(terminal.written)[-1] == "8/8"
    made.train(repeated, **counted)
    drawn = [bar for bar in bars(terminal.written) if bar.endswith("/16")]
    assert (drawn[0], drawn[-1]) == ("12/16", "16/16")
    *_, line = terminal.lines
    assert re.match(r"16/16 ━+ \d+s \d+[mu]?s/step - loss: \d", line)


def test_step_time_is_the_mean_since_the_start(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    bar = progress._Bar(500, 500)
    seen = []
    # The first run is compiled.
    for step, now[0] in [(510, 160), (520, 161), (530, 162), (540, 163)]:
        seen.append(bar._estimate_step_duration(step, now[0]))
        assert bar._estimate_step_duration(step, now[0]) == seen[-1]
    assert seen == [6.0, pytest.approx(61 / 20), pytest.approx(62 / 30), 0.1]


@pytest.mark.parametrize(
    ("steps", "shown"),
    [(3, ["0/3", "3/3"]), (None, ["0/Unknown", "4/Unknown"])],
)
@on_terminal
def test_evaluate_has_a_bar(tmp_path, terminal, steps, shown):
    made = estimator(tmp_path)
    result = made.evaluate(batches_of(X, Y), steps=steps)
    terminal.stream.write("next\n")
    drawn = bars(terminal.written)
    assert [drawn[0], drawn[-1]] == shown
    *_, line, after = terminal.lines
    assert after == "next"
    assert f"- loss: {result['loss']:.4f}" in line


@on_terminal
def test_evaluation_during_training_has_its_own_line(tmp_path, terminal):
    hook = kte.hooks.InMemoryEvaluatorHook
    made = estimator(tmp_path)
    made.train(repeated, [hook(made, batches_of(X, Y), every_n_iter=8)], max_steps=8)
    lines = [line for line in terminal.lines if line]
    assert all(len(bars(line)) == 1 for line in lines)
    assert {bars(line)[0] for line in lines} >= {"4/Unknown", "8/8"}


@pytest.mark.parametrize("end", ["\n", " ", ""])
@on_terminal
def test_predict_keeps_its_callers_output(tmp_path, terminal, monkeypatch, end):
    monkeypatch.setattr(progress, "_PASSING_AFTER_SECS", 0.0)
    made = estimator(tmp_path)
    expected = ""
    for number, _ in enumerate(made.predict(batches_of(X))):
        terminal.stream.write(f"{number}{end}")
        expected += f"{number}{end}"
    drawn = re.findall(r"(\d+)/Unknown", terminal.written)
    assert drawn == ["0", "1", "2", "3", "4"]
    lines = [line for line in terminal.lines if line]
    assert lines == [line.rstrip() for line in expected.split("\n") if line]


@on_terminal
def test_abandoned_prediction_removes_its_bar(tmp_path, terminal, monkeypatch):
    monkeypatch.setattr(progress, "_PASSING_AFTER_SECS", 0.0)
    predictions = estimator(tmp_path).predict(batches_of(X))
    next(predictions)
    predictions.close()
    assert "0/Unknown" in terminal.written
    assert not any(terminal.lines)


@on_terminal
def test_fast_prediction_has_no_bar(tmp_path, terminal, monkeypatch):
    monkeypatch.setattr(progress, "_PASSING_AFTER_SECS", 600.0)
    list(estimator(tmp_path).predict(batches_of(X)))
    assert "Unknown" not in terminal.written


def test_nothing_is_drawn_without_a_terminal(tmp_path, capsys):
    for setting in ("auto", False):
        made = estimator(tmp_path, config={"progress": setting})
        made.evaluate(batches_of(X, Y))
        list(made.predict(batches_of(X)))
    # Without a terminal, no line can be drawn below the output.
    made = estimator(tmp_path, config={"progress": True})
    list(made.predict(batches_of(X)))
    assert capsys.readouterr().out == ""


class Stopped(kte.hooks.SessionRunHook):
    """Calls a function after the run that reaches step 8."""

    def __init__(self, action):
        self._action = action

    def after_run(self, context, values):
        if context.session.run("global_step") == 8:
            self._action()


def lines_beside_bars(terminal):
    """Checks that each bar has a separate line; returns the other lines."""
    lines = [line for line in terminal.lines if line]
    assert any(re.match(r" *\d+/\d+ .*", line) for line in lines)
    others = [line for line in lines if "━" not in line]
    for line in lines:
        if "━" in line:
            assert re.fullmatch(r" *\d+/\d+ ━+ .*loss: [\d.e+-]+(\^C)?", line)
    return others


@on_terminal
def test_signal_is_logged_on_its_own_line(tmp_path, terminal, logs_to, request):
    # A shell makes its background jobs ignore this signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    logs_to(terminal.stream)
    hook = Stopped(lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(SystemExit):
        estimator(tmp_path).train(repeated, [hook], max_steps=40)
    said, _ = lines_beside_bars(terminal)
    assert said.startswith("SIGINT: training stops at the end of this loop.")


@on_terminal
def test_error_starts_on_a_new_line(tmp_path, terminal):
    def fail():
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        estimator(tmp_path).train(repeated, [Stopped(fail)], max_steps=40)
    terminal.stream.write("Traceback\n")
    assert lines_beside_bars(terminal) == ["Traceback"]


@pytest.mark.parametrize("is_on_terminal", [True, False])
@on_terminal
def test_log_lines_on_the_terminal_end_the_bar(
    tmp_path, terminal, logs_to, is_on_terminal
):
    with open(tmp_path / "log", "w") as file:
        logs_to(terminal.stream if is_on_terminal else file)
        hook = Stopped(lambda: OWN.warning("Something."))
        estimator(tmp_path / "run").train(repeated, [hook], max_steps=40)
    others = lines_beside_bars(terminal)
    assert others == (["Something."] if is_on_terminal else [])


def test_screen_interprets_control_sequences():
    assert screen("a\r\nb\rc") == ["a", "c"]
    assert screen("ab\x1bD\x1b7\rbar\x1b8\x1bMc") == ["abc", "bar"]
    assert screen("ab\x1bD\x1b[2K\x1bM\r\nx") == ["ab", "x"]
    assert screen("abc\r\x1b[1mx\x1b[0m\x1b[K") == ["x"]
