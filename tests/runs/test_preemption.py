"""Tests that SIGTERM and SIGINT finish the loop, save and exit."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from helpers import estimator_of, linear, model_fn_of, regression_data, repeated

import keras_tpu_estimator as kte
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.engine.inputs import pipeline
from keras_tpu_estimator.runs.preemption import Preemption, StopSignals

X, Y = regression_data()
SIGNALS = [(signal.SIGTERM, 143), (signal.SIGINT, 130)]


class SignalAt(kte.hooks.SessionRunHook):
    """Sends a signal to this process before a loop."""

    def __init__(self, number, step):
        self.number = number
        self.step = step
        self.ended = False

    def before_run(self, run_context):
        if run_context.session.run("global_step") == self.step:
            signal.raise_signal(self.number)

    def end(self, session):
        self.ended = True


@pytest.fixture(autouse=True)
def usual_handlers():
    """The signal handlers of a foreground process; others ignore SIGINT."""
    before = {number: signal.getsignal(number) for number, _ in SIGNALS}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def new_estimator(model_dir, **config):
    return estimator_of(model_fn_of(linear), model_dir, config=config)


def handlers():
    return [signal.getsignal(number) for number, _ in SIGNALS]


class Training(kte.hooks.SessionRunHook):
    """Trains another estimator after the second loop."""

    def __init__(self, estimator, hooks, max_steps):
        self.estimator = estimator
        self.hooks = hooks
        self.max_steps = max_steps

    def after_run(self, run_context, run_values):
        if run_context.session.run("global_step") == 8:
            self.estimator.train(
                repeated(X, Y), hooks=self.hooks, max_steps=self.max_steps
            )


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_training_inside_a_hook_also_stops(number, code, tmp_path):
    before = handlers()

    def run(name, *hooks):
        inner = new_estimator(tmp_path / name / "inner")
        outer = new_estimator(tmp_path / name / "outer")
        nested = Training(inner, hooks, max_steps=12)
        outer.train(repeated(X, Y), hooks=[nested], max_steps=16)
        return [
            {n: e.get_variable_value(n) for n in e.get_variable_names()}
            for e in (inner, outer)
        ]

    whole = run("whole")
    with pytest.raises(SystemExit) as stopped:
        run("parts", SignalAt(number, 4))
    assert stopped.value.code == code
    assert handlers() == before
    assert checkpoints.step_of(tmp_path / "parts" / "inner") == 8
    resumed = run("parts")
    for right, ours in zip(whole, resumed, strict=True):
        for name, value in right.items():
            np.testing.assert_array_equal(ours[name], value)


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_outer_training_stops_after_the_inner_one_ends(number, code, tmp_path):
    class AtEnd(kte.hooks.SessionRunHook):
        def end(self, session):
            signal.raise_signal(number)

    inner = new_estimator(tmp_path / "inner")
    outer = new_estimator(tmp_path / "outer")
    with pytest.raises(SystemExit) as stopped:
        outer.train(
            repeated(X, Y),
            hooks=[Training(inner, [AtEnd()], max_steps=4)],
            max_steps=16,
        )
    assert stopped.value.code == code
    assert checkpoints.step_of(inner.model_dir) == 4


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_loop_is_finished_and_saved(number, code, tmp_path, caplog):
    before = handlers()
    hook = SignalAt(number, 4)
    whole = new_estimator(tmp_path / "whole")
    whole.train(repeated(X, Y), max_steps=12)
    estimator = new_estimator(tmp_path / "parts")
    with pytest.raises(SystemExit) as stopped:
        estimator.train(repeated(X, Y), hooks=[hook], max_steps=12)
    assert stopped.value.code == code
    assert hook.ended and handlers() == before
    assert estimator.get_variable_value("global_step") == 8
    assert f"because of {number.name}" in caplog.text
    assert "model.ckpt-8" in caplog.text
    # Another process continues without a difference.
    resumed = new_estimator(tmp_path / "parts")
    resumed.train(repeated(X, Y), max_steps=12)
    for name in whole.get_variable_names():
        np.testing.assert_array_equal(
            whole.get_variable_value(name), resumed.get_variable_value(name)
        )


def test_signal_in_the_last_loop_saves_no_iterator_state(tmp_path):
    estimator = new_estimator(tmp_path)
    with pytest.raises(SystemExit):
        estimator.train(
            repeated(X, Y), hooks=[SignalAt(signal.SIGTERM, 4)], max_steps=8
        )
    assert not [*tmp_path.glob("model.ckpt-8.input*")]


def test_without_checkpoints_nothing_is_saved(tmp_path, caplog):
    estimator = new_estimator(tmp_path, save_checkpoints_steps=None)
    with pytest.raises(SystemExit):
        estimator.train(
            repeated(X, Y), hooks=[SignalAt(signal.SIGTERM, 4)], max_steps=12
        )
    assert os.listdir(tmp_path) == []
    assert "No checkpoint exists" in caplog.text


def test_interactive_session_is_not_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    estimator = new_estimator(tmp_path)
    hooks = [SignalAt(signal.SIGINT, 4)]
    with pytest.raises(KeyboardInterrupt):
        estimator.train(repeated(X, Y), hooks=hooks, max_steps=12)
    assert estimator.get_variable_value("global_step") == 8


@pytest.mark.parametrize(("batches", "steps"), [(0, None), (4, 4), (6, 6)])
def test_signal_does_not_wait_for_a_blocked_input(
    batches, steps, tmp_path, monkeypatch
):
    monkeypatch.setattr(pipeline, "_PATIENCE_SECS", 0.01)
    gone = threading.Event()

    def stuck(params):
        data = repeated(X, Y)(params)
        for _ in range(batches):
            yield next(data)
        os.kill(os.getpid(), signal.SIGTERM)
        gone.wait()

    estimator = new_estimator(tmp_path)
    with pytest.raises(SystemExit):
        estimator.train(stuck, max_steps=12)
    gone.set()
    checkpoint = estimator.latest_checkpoint()
    assert (checkpoint is None) == (steps is None)
    if steps:
        # A loop does not start before its input is complete.
        assert estimator.get_variable_value("global_step") == 4


def test_user_handlers_are_not_replaced():
    received = []
    before = signal.signal(signal.SIGTERM, lambda *args: received.append(1))
    try:
        with Preemption() as preemption:
            signal.raise_signal(signal.SIGTERM)
            assert received == [1] and not preemption.is_requested()
            signal.raise_signal(signal.SIGINT)
            assert preemption.is_requested()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_do_not_handle_signals(tmp_path):
    before = handlers()
    during = []

    def train():
        with Preemption():
            during.append(handlers())

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert during == [before] == [handlers()]


def ran(program, **names):
    """Runs a script in a new process; returns its output and exit status."""
    for name, value in names.items():
        program = program.replace(name, str(value))
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_second_signal_stops_at_once(number, code):
    result = ran(
        """
        import signal
        from keras_tpu_estimator.runs.preemption import StopSignals

        try:
            with StopSignals():
                signal.raise_signal(NUMBER)
                print("first", flush=True)
                signal.raise_signal(NUMBER)
                print("second", flush=True)
        finally:
            print("finally", flush=True)
        """,
        NUMBER=int(number),
    )
    assert (result.stdout, result.returncode) == ("first\n", code)


@pytest.mark.usefixtures("forked_programs")
def test_signals_are_handled_while_the_main_thread_blocks():
    result = ran(
        """
        import ctypes, os, signal, threading, time
        from keras_tpu_estimator.runs.preemption import StopSignals

        def send():
            for _ in range(2):
                time.sleep(0.2)
                os.kill(os.getpid(), signal.SIGTERM)

        # A lock in C, which no signal interrupts; Python's would be.
        libc = ctypes.CDLL(None)
        mutex = ctypes.create_string_buffer(256)
        with StopSignals():
            libc.pthread_mutex_lock(mutex)
            threading.Thread(target=send).start()
            libc.pthread_mutex_lock(mutex)
        """
    )
    assert result.returncode == 143
    assert "SIGTERM: training stops at the end" in result.stderr


@pytest.mark.usefixtures("forked_programs")
def test_forked_processes_use_default_handlers():
    result = ran(
        """
        import os, signal
        from keras_tpu_estimator.runs.preemption import StopSignals

        with StopSignals() as signals:
            for _ in range(2):
                child = os.fork()
                if not child:
                    signal.raise_signal(signal.SIGTERM)
                    os._exit(0)
                status = os.waitpid(child, 0)[1]
                print(os.waitstatus_to_exitcode(status), signals.received)
        """
    )
    assert result.stdout == "-15 None\n" * 2
    assert "training stops" not in result.stderr


def test_event_loop_keeps_its_wakeups():
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno())
        with StopSignals() as signals:
            signal.raise_signal(signal.SIGTERM)
            assert signals.received == signal.SIGTERM
        assert signal.set_wakeup_fd(-1) == writer.fileno()
        assert reader.recv(1) == bytes([signal.SIGTERM])
