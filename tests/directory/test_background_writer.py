"""Writing on a thread, one checkpoint at a time."""

import subprocess
import sys
import threading

import numpy as np
import pytest
from helpers import open_when_joined

from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.files.directory.background_writer import Writer
from keras_tpu_estimator.files.directory.background_writer import wait_for


@pytest.fixture
def gate():
    """An event that is set at the latest when the test ends."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def opened_by_waiting(gate, monkeypatch):
    """A gate that is open once somebody waits for the writer."""
    open_when_joined(monkeypatch, gate, "checkpoint-writer")
    return gate


def fail():
    raise OSError(28, "No space left on device")


def test_the_caller_goes_on(gate, tmp_path):
    writer = Writer()
    writer.start(tmp_path, gate.wait)
    assert writer.is_busy
    gate.set()
    writer.wait()
    assert not writer.is_busy


def test_one_waits_for_the_one_before(opened_by_waiting, tmp_path):
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
def test_an_error_is_raised_once_and_as_itself(then, tmp_path):
    writer = Writer()
    writer.start(tmp_path, fail)
    with pytest.raises(OSError, match="No space left") as caught:
        then(writer)
    assert caught.value.errno == 28
    writer.wait()


def test_whoever_looks_for_the_latest_waits_for_it(opened_by_waiting, tmp_path):
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


_ENDS_WHILE_WRITING = """
import sys, threading
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.files.directory.background_writer import Writer

def write():
    threading.main_thread().join()
    checkpoints.save(sys.argv[1], 20, {})

Writer().start(sys.argv[1], write)
"""


@pytest.mark.usefixtures("forked_programs")
def test_a_process_that_ends_waits(tmp_path):
    command = [sys.executable, "-c", _ENDS_WHILE_WRITING, str(tmp_path)]
    subprocess.run(command, check=True)
    assert checkpoints.step_of(tmp_path) == 20


def test_large_values_are_written_from_the_thread(tmp_path):
    values = {"v": np.arange(1 << 20)}
    writer = Writer()
    writer.start(tmp_path, lambda: checkpoints.save(tmp_path, 1, values))
    read = checkpoints.read(checkpoints.latest(tmp_path))
    np.testing.assert_array_equal(read["v"], values["v"])
    writer.wait()
