"""Tests that the exit of Python waits for what threads release."""

import signal
import subprocess
import sys
import threading
import time

import pytest

from keras_tpu_estimator.engine.inputs import datasets

PATIENCE_SECS = 0.2
# Python exits for some seconds, in which a thread returns from TensorFlow.
RETURNS_LATE = """
import sys, threading, time
import tensorflow as tf
from keras_tpu_estimator.engine.inputs import datasets, pipeline

class SlowExit:
    def __del__(self, sleep=time.sleep):
        sleep(4)

def slow(number):
    size = tf.where(number > 0, 5_000_000, 1)
    return tf.sort(tf.random.uniform([size]))[0]

sys.modules["slow_exit"] = SlowExit()
datasets._MAXIMUM_SECS = pipeline._PATIENCE_SECS = 0
with tf.Graph().as_default() as graph:
    data = tf.data.Dataset.range(9).map(slow).prefetch(1)
    batch = tf.compat.v1.data.make_one_shot_iterator(data).get_next()
    session = tf.compat.v1.Session(graph=graph)
    session.run(batch)
END
time.sleep(0.1)
sys.exit(3)
"""
# A C++ library ends the process while a thread is stuck.
TERMINATES = """
import ctypes, sys, threading, time
from keras_tpu_estimator.engine.inputs import datasets

terminate = ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev

def at_exit():
    ctypes.CDLL(None).__cxa_atexit(terminate, None, None)

class OnThread:
    def __del__(self, start=ctypes.CDLL(None).pthread_create, sleep=time.sleep):
        start(ctypes.byref(ctypes.c_ulong()), None, terminate, None)
        sleep(9)

def on_thread():
    sys.modules["on_thread"] = OnThread()

datasets._PATIENCE_SECS = 0.1
datasets.release(threading.Event().wait)
END()
"""
needs_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="Only Linux unwinds threads of an exiting process."
)


@pytest.fixture(autouse=True)
def short_patience(monkeypatch):
    monkeypatch.setattr(datasets, "_PATIENCE_SECS", PATIENCE_SECS)


def test_exit_waits_for_slow_releases():
    until = time.process_time() + 3 * PATIENCE_SECS
    done = threading.Event()

    def busy():
        while time.process_time() < until:
            pass
        done.set()

    datasets.release(busy)
    datasets.end_threads()
    assert done.is_set()


def test_exit_does_not_wait_for_stuck_releases():
    go_on = threading.Event()
    datasets.release(go_on.wait)
    start = time.monotonic()
    datasets.end_threads()
    assert time.monotonic() - start < 60 * PATIENCE_SECS
    go_on.set()
    datasets.end_threads()
    assert not datasets._released


@needs_linux
@pytest.mark.rows(1)
@pytest.mark.parametrize(
    "end",
    [
        "datasets.release(session.close)",
        "pipeline.Infeed(lambda: session.close()).close()",
    ],
)
def test_threads_that_return_late_do_not_abort_the_exit(end):
    script = RETURNS_LATE.replace("END", end)
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True
    )
    assert "terminate" not in ended.stderr
    assert ended.returncode == 3


@needs_linux
@pytest.mark.parametrize("end", ["at_exit", "on_thread"])
def test_crash_at_exit_ends_the_process_by_its_signal(end):
    script = TERMINATES.replace("END", end)
    ended = subprocess.run([sys.executable, "-c", script], timeout=60)
    assert ended.returncode == -signal.SIGABRT


def test_no_thread_starts_while_python_exits(monkeypatch):
    # Python then waits forever for the thread to start.
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    called = []
    datasets.release(lambda: called.append(1))
    assert not datasets._released
    assert not called
