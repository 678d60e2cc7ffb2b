"""Tests that the exit of Python waits for what threads release."""

import sys
import threading
import time

import pytest

from keras_tpu_estimator.engine.inputs import datasets

PATIENCE_SECS = 0.2


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
    datasets.wait_for_releases()
    assert done.is_set()


def test_exit_does_not_wait_for_stuck_releases():
    go_on = threading.Event()
    datasets.release(go_on.wait)
    start = time.monotonic()
    datasets.wait_for_releases()
    assert time.monotonic() - start < 60 * PATIENCE_SECS
    go_on.set()
    datasets.wait_for_releases()
    assert not datasets._threads


def test_no_thread_starts_while_python_exits(monkeypatch):
    # Python then waits forever for the thread to start.
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    called = []
    datasets.release(lambda: called.append(1))
    assert not datasets._threads
    assert not called
