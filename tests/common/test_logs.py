"""Tests that each log line appears once, in TensorFlow's format."""

import io
import logging
import subprocess
import sys

import pytest
from absl import flags
from absl import logging as absl_logging

from keras_tpu_estimator.base.common import logs

OWN, TENSORFLOW = "keras_tpu_estimator", "tensorflow"


class Terminal:
    """The output of three loggers, with new handlers."""

    def __init__(self, monkeypatch):
        self.stream = io.StringIO()
        self.monkeypatch = monkeypatch
        for stream in ("stderr", "stdout"):
            monkeypatch.setattr(sys, stream, self.stream)
        for name in (OWN, TENSORFLOW, None):
            logger = logging.getLogger(name)
            monkeypatch.setattr(logger, "handlers", [])
            monkeypatch.setattr(logger, "parent", logger.parent)
            monkeypatch.setattr(logger, "propagate", logger.propagate)
            logger.setLevel(logging.INFO)
        absl = absl_logging.get_absl_handler()
        monkeypatch.setattr(absl, "filters", [])
        monkeypatch.setattr(absl.python_handler, "stream", self.stream)

    def import_tensorflow(self):
        """The behaviour if the root logger has no handler."""
        logging.getLogger(TENSORFLOW).addHandler(self.handler(logging.BASIC_FORMAT))

    def handler(self, form, stream=None):
        handler = logging.StreamHandler(stream or self.stream)
        handler.setFormatter(logging.Formatter(form))
        return handler

    def lines(self):
        """The output for a line of each logger."""
        logging.getLogger(OWN).info("own")
        logging.getLogger(f"{OWN}.room").info("of a room")
        logging.getLogger(TENSORFLOW).info("TensorFlow's")
        return self.stream.getvalue().splitlines()


@pytest.fixture(autouse=True)
def levels_and_flags():
    loggers = [logging.getLogger(name) for name in (OWN, TENSORFLOW, None)]
    before = [logger.level for logger in loggers]
    # Until then, absl shows everything.
    flags.FLAGS.mark_as_parsed()
    yield
    flags.FLAGS.unparse_flags()
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.fixture
def made(monkeypatch):
    """Makes a terminal during the test, because pytest has one for each phase."""
    return lambda: Terminal(monkeypatch)


def nothing(terminal):
    """A script that does not configure logging."""


def app_run(terminal):
    logging.getLogger().addHandler(absl_logging.get_absl_handler())


def basic_config(terminal):
    logging.getLogger().addHandler(terminal.handler(logging.BASIC_FORMAT))


@pytest.mark.parametrize("is_joined_first", [True, False])
@pytest.mark.parametrize("set_up", [nothing, app_run, basic_config])
def test_each_line_appears_once(made, set_up, is_joined_first):
    terminal = made()
    terminal.import_tensorflow()
    for step in (
        [logs.join_tensorflow, lambda: set_up(terminal)]
        if is_joined_first
        else [lambda: set_up(terminal), logs.join_tensorflow]
    ):
        step()
    logs.join_tensorflow()
    assert terminal.lines() == [
        "INFO:tensorflow:own",
        "INFO:tensorflow:of a room",
        "INFO:tensorflow:TensorFlow's",
    ]


def test_users_format_is_used(made):
    terminal = made()
    terminal.import_tensorflow()
    logs.join_tensorflow()
    logging.getLogger().addHandler(terminal.handler("mine: %(message)s"))
    expected = ["mine: own", "mine: of a room", "mine: TensorFlow's"]
    assert terminal.lines() == expected


def test_handler_for_errors_does_not_hide_other_lines(made):
    terminal = made()
    terminal.import_tensorflow()
    logs.join_tensorflow()
    handler = terminal.handler("mine: %(message)s")
    handler.setLevel(logging.ERROR)
    logging.getLogger().addHandler(handler)
    assert terminal.lines()[0] == "INFO:tensorflow:own"
    logging.getLogger(OWN).error("bad")
    assert terminal.stream.getvalue().splitlines()[3:] == ["mine: bad"]


def test_absl_handler_is_used_without_tensorflows(made):
    terminal = made()
    app_run(terminal)
    logs.join_tensorflow()
    lines = terminal.lines()
    assert [line.partition("] ")[2] for line in lines] == [
        "own",
        "of a room",
        "TensorFlow's",
    ]


@pytest.mark.parametrize("is_absls", [True, False])
def test_file_receives_all_lines(made, is_absls, monkeypatch):
    terminal = made()
    file = io.StringIO()
    terminal.import_tensorflow()
    logs.join_tensorflow()
    if is_absls:
        absl = absl_logging.get_absl_handler()
        monkeypatch.setattr(absl.python_handler, "stream", file)
        app_run(terminal)
    else:
        handler = terminal.handler(logging.BASIC_FORMAT, file)
        logging.getLogger().addHandler(handler)
    assert len(terminal.lines()) == len(file.getvalue().splitlines()) == 3


@pytest.mark.parametrize(
    ("own", "other", "joins"),
    [
        (logging.NOTSET, logging.INFO, True),
        (logging.NOTSET, logging.DEBUG, True),
        (logging.NOTSET, logging.WARNING, False),
        (logging.ERROR, logging.INFO, False),
    ],
)
def test_verbosity_of_tensorflow_is_respected(made, own, other, joins):
    terminal = made()
    terminal.import_tensorflow()
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger(OWN).setLevel(own)
    logging.getLogger(TENSORFLOW).setLevel(other)
    logs.follow_tensorflow()
    assert logging.getLogger(OWN).isEnabledFor(logging.INFO) == joins
    assert ("INFO:tensorflow:own" in terminal.lines()) == joins


@pytest.mark.parametrize(
    ("level", "has_handler", "joins"),
    [
        # TensorFlow sets this unless the root logger is configured.
        (logging.INFO, True, False),
        (logging.INFO, False, True),
        (logging.DEBUG, True, True),
    ],
)
def test_interactive_sessions_do_not_change_the_verbosity(
    made, monkeypatch, level, has_handler, joins
):
    terminal = made()
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    if has_handler:
        terminal.import_tensorflow()
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger(OWN).setLevel(logging.NOTSET)
    logging.getLogger(TENSORFLOW).setLevel(level)
    logs.follow_tensorflow()
    assert logging.getLogger(OWN).isEnabledFor(logging.INFO) == joins
    other = logging.getLogger(TENSORFLOW)
    with logs.without_interactive_default():
        assert other.isEnabledFor(logging.INFO) == joins
    assert other.level == level


PROGRAM = """
import logging
import tensorflow.compat.v1 as tf
import keras_tpu_estimator as kte

def main(argv):
    logging.basicConfig()
    tf.logging.set_verbosity(tf.logging.INFO)
    kte.TPUEstimator(
        lambda features, labels, mode, params: None,
        model_dir="run", config=kte.RunConfig(), train_batch_size=8,
    )
    logging.getLogger("keras_tpu_estimator").info("own")
    tf.logging.info("TensorFlow's")

tf.app.run(main)
"""


@pytest.mark.rows(1)
@pytest.mark.parametrize("launcher", [[], ["-m", "keras_tpu_estimator", "tf1"]])
@pytest.mark.usefixtures("forked_programs")
def test_tf1_script_shows_each_line_once(tmp_path, launcher):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, *launcher, "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    told = [
        line
        for line in done.stderr.splitlines()
        if line.endswith(("own", "TensorFlow's"))
    ]
    assert told == ["INFO:tensorflow:own", "INFO:tensorflow:TensorFlow's"]
