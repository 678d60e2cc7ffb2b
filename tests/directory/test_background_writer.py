"""Tests that a thread writes one checkpoint at a time."""

import subprocess
import sys
import threading

import numpy as np
import pytest
from helpers import open_when_joined

from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.files.directory.location import Writer, wait_for


@pytest.fixture
def gate():
    """An event that is set at the end of the test at the latest."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def opened_by_waiting(gate, monkeypatch):
    """A gate that opens once a thread waits for the writer."""
    open_when_joined(monkeypatch, gate, "checkpoint-writer")
    return gate


def fail():
    raise OSError(28, "No space left on device")


def test_caller_continues(gate, tmp_path):
    writer = Writer()
    writer.start(tmp_path, gate.wait)
    assert writer.is_busy
    gate.set()
    writer.wait()
    assert not writer.is_busy


def test_save_waits_for_the_previous_one(opened_by_waiting, tmp_path):
    done = []
    writer = Writer()

    def first():
        opened_by_waiting.wait()
        done.append("first")

    writer.start(tmp_path, first)
    writer.start(tmp_path, lambda: done.append("second"))
    assert done[0] == "first"
    writer.wait()
    assert done == ["first", "second"]


@pytest.mark.parametrize(
    "then",
    [lambda writer: writer.wait(), lambda writer: writer.start(".", fail)],
    ids=["wait", "start"],
)
def test_error_is_raised_once_and_unchanged(then, tmp_path):
    writer = Writer()
    writer.start(tmp_path, fail)
    with pytest.raises(OSError, match="No space left") as caught:
        then(writer)
    assert caught.value.errno == 28
    writer.wait()


def test_latest_checkpoint_waits_for_the_background_writer(opened_by_waiting, tmp_path):
    def write():
        opened_by_waiting.wait()
        checkpoints.save(tmp_path, 20, {})

    checkpoints.save(tmp_path, 10, {})
    writer = Writer()
    writer.start(tmp_path, write)
    assert checkpoints.latest(tmp_path / "..") is None
    assert checkpoints.latest(f"{tmp_path}/.").endswith("model.ckpt-20")
    writer.wait()


def test_waiting_for_a_directory_raises_no_error(tmp_path):
    writer = Writer()
    writer.start(tmp_path, fail)
    wait_for(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        writer.wait()


def test_starting_save_can_be_awaited(tmp_path, monkeypatch):
    """Another thread may wait between any two lines."""
    start, looked = threading.Thread.start, []

    def look():
        wait_for(tmp_path)
        looked.append(True)

    def starting(thread):
        if thread.name != "checkpoint-writer":
            return start(thread)
        other = threading.Thread(target=look)
        other.start()
        other.join(0.1)
        start(thread)
        looked.append(other)

    monkeypatch.setattr(threading.Thread, "start", starting)
    writer = Writer()
    writer.start(tmp_path, lambda: None)
    writer.wait()
    (other,) = (each for each in looked if each is not True)
    other.join()
    assert True in looked


def test_two_writers_of_a_directory_are_awaited(gate, tmp_path):
    first, second = Writer(), Writer()
    written = []

    def write():
        gate.wait()
        written.append("second")

    second.start(tmp_path, write)
    first.start(tmp_path, lambda: None)
    first.wait()
    threading.Timer(0.05, gate.set).start()
    wait_for(tmp_path)
    assert written == ["second"]
    second.wait()


def test_thread_that_cannot_start_is_not_awaited(tmp_path, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    writer = Writer()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            writer.start(tmp_path, lambda: None)
    assert not writer.is_busy
    wait_for(tmp_path)
    writer.start(tmp_path, lambda: None)
    writer.wait()


_ENDS_WHILE_WRITING = """
import sys, threading
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.files.directory.location import Writer

def write():
    threading.main_thread().join()
    checkpoints.save(sys.argv[1], 20, {})

Writer().start(sys.argv[1], write)
"""


@pytest.mark.usefixtures("forked_programs")
def test_exiting_process_waits(tmp_path):
    command = [sys.executable, "-c", _ENDS_WHILE_WRITING, str(tmp_path)]
    subprocess.run(command, check=True)
    assert checkpoints.step_of(tmp_path) == 20


def test_thread_writes_large_values(tmp_path):
    values = {"v": np.arange(1 << 20)}
    writer = Writer()
    writer.start(tmp_path, lambda: checkpoints.save(tmp_path, 1, values))
    read = checkpoints.read(checkpoints.latest(tmp_path))
    np.testing.assert_array_equal(read["v"], values["v"])
    writer.wait()
