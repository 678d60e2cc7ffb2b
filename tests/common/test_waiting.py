"""Tests of the messages during tracing and compiling."""

import gc
import io
import logging
import os
import types

import pytest
from helpers import batches_of, estimator_of, linear, model_fn_of, regression_data

from keras_tpu_estimator.base.common import waiting

GONE = "\r\x1b[K"


class Terminal(io.StringIO):
    """A terminal that records its output."""

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    terminal = Terminal()
    # `sys` is not patched, because pytest restores its streams.
    streams = types.SimpleNamespace(stderr=terminal)
    monkeypatch.setattr(waiting, "sys", streams)
    return terminal


def test_message_is_shown_and_cleared(terminal, caplog):
    caplog.set_level(logging.INFO, "keras_tpu_estimator")
    with waiting.Waiting(is_shown=True):
        waiting.announce("Compiling")
    assert terminal.getvalue() == f"{GONE}Compiling ...{GONE}"
    assert caplog.messages == ["Compiling."]


def test_message_is_cleared_after_an_error(terminal):
    with pytest.raises(KeyError), waiting.showing("Importing ..."):
        raise KeyError
    assert terminal.getvalue() == f"{GONE}Importing ...{GONE}"


def test_nothing_is_shown_unless_enabled(terminal):
    waiting.announce("Compiling")
    with waiting.Waiting():
        waiting.announce("Compiling")
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_collector_pauses_until_the_last_block_ends(is_enabled):
    before = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        with pytest.raises(KeyError), waiting.Waiting():
            with waiting.Waiting():
                assert not gc.isenabled()
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows cannot fork.")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning")
def test_a_forked_process_collects_garbage():
    before = gc.isenabled()
    gc.enable()
    try:
        with waiting.Waiting():
            child = os.fork()
            if not child:
                os._exit(0 if gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("stderr", [None, io.StringIO()])
def test_nothing_is_shown_without_a_terminal(monkeypatch, stderr):
    streams = types.SimpleNamespace(stderr=stderr)
    monkeypatch.setattr(waiting, "sys", streams)
    with waiting.Waiting(is_shown=True), waiting.showing("Importing ..."):
        waiting.announce("Compiling")
    assert stderr is None or stderr.getvalue() == ""


def test_estimator_shows_tracing_and_compiling(tmp_path, terminal, caplog):
    x, y = regression_data(16)
    settings = {"config": {"progress": True}, "save_summary_steps": None}
    estimator = estimator_of(model_fn_of(linear), tmp_path, **settings)
    estimator.train(batches_of(x, y), max_steps=1)
    estimator.evaluate(batches_of(x, y))
    list(estimator.predict(batches_of(x)))
    shown = terminal.getvalue().split(GONE)
    expected = [
        told
        for mode in ("train", "eval", "infer")
        for told in (
            f"Calling model_fn for mode '{mode}' ...",
            f"Compiling the steps of mode '{mode}' ...",
        )
    ]
    assert [text for text in shown if text] == expected
    assert shown[-1] == ""
    # Nothing is traced or compiled, and no training remains.
    estimator.evaluate(batches_of(x, y))
    assert not caplog.messages
    estimator.train(batches_of(x, y), max_steps=1)
    assert terminal.getvalue().split(GONE) == shown
    (told,) = caplog.messages
    assert "Training ends without a step: " in told
    assert "has reached step 1, and max_steps=1" in told
