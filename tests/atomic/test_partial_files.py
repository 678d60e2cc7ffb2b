"""Tests files that several processes write into one directory."""

import os
import subprocess
import sys

import pytest

from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.files.directory.retention import note

_WRITING = """
import signal, sys
from keras_tpu_estimator.files.atomic.commit import partial_file
with partial_file(sys.argv[1]) as partial:
    print(partial, flush=True)
    signal.pause()
"""
_LOST = "best.json.0f0f0f0f.kte-partial"


@pytest.fixture
def writing(tmp_path, forked_programs):
    """Starts a process that writes a file; yields it and the file's name."""
    with subprocess.Popen(
        [sys.executable, "-c", _WRITING, str(tmp_path / "best.json")],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process, process.stdout.readline().strip()
        process.kill()


def test_file_of_another_process_stays_until_it_is_killed(tmp_path, writing):
    process, partial = writing
    checkpoints.save(tmp_path, 20, {})
    commit.remove_abandoned(str(tmp_path))
    assert os.path.exists(partial)
    process.kill()
    process.communicate()
    checkpoints.save(tmp_path, 30, {})
    assert not os.path.exists(partial)


def test_save_keeps_unfinished_files(tmp_path, monkeypatch):
    """An evaluation records the best checkpoint while training saves."""
    prefix = checkpoints.save(tmp_path, 10, {})
    fsync, steps = os.fsync, iter([20])

    def and_save(descriptor):
        fsync(descriptor)
        for step in steps:
            checkpoints.save(tmp_path, step, {})

    monkeypatch.setattr(os, "fsync", and_save)
    note(checkpoints.KeepBest(), str(tmp_path), prefix, {"loss": 1.0})
    assert checkpoints.best(tmp_path) == prefix
    assert checkpoints.latest(tmp_path) == str(tmp_path / "model.ckpt-20")


def test_two_writers_of_a_file_use_different_names(tmp_path):
    path = str(tmp_path / "file")
    with commit.replacing(path) as one:
        with commit.replacing(path) as other:
            for partial, text in ((one, "one"), (other, "other")):
                with open(partial, "w") as file:
                    file.write(text)
        assert (tmp_path / "file").read_text() == "other"
    assert (tmp_path / "file").read_text() == "one"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(("age", "stays"), [(10, True), (-10, False)])
def test_age_decides_without_locks(tmp_path, monkeypatch, age, stays):
    def flock(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(commit.fcntl, "flock", flock)
    lost = tmp_path / _LOST
    lost.touch()
    changed = commit._STARTED + age
    os.utime(lost, (changed, changed))
    checkpoints.save(tmp_path, 20, {})
    assert lost.exists() == stays


def test_files_that_tensorflow_derives_from_a_name_are_removed(tmp_path):
    names = [_LOST, f"{_LOST}.index", f"{_LOST}.data-00000-of-00001"]
    for name in names:
        (tmp_path / name).touch()
    descriptor = os.open(tmp_path / _LOST, os.O_RDWR)
    commit.take_lock(descriptor)
    commit.remove_abandoned(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    commit.close_lock(descriptor)
    commit.remove_abandoned(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_file_that_was_removed_as_abandoned_is_recreated(tmp_path, monkeypatch):
    """Another process looks at the file just before its writer locks it."""
    take, times = commit.take_lock, iter([1, 2])

    def late(descriptor):
        if next(times, None) == 1:
            commit.remove_abandoned(str(tmp_path))
        return take(descriptor)

    monkeypatch.setattr(commit, "take_lock", late)
    with commit.replacing(str(tmp_path / "file")) as partial:
        with open(partial, "w") as file:
            file.write("whole")
    assert (tmp_path / "file").read_text() == "whole"


def test_file_of_another_user_stays(tmp_path, monkeypatch):
    (tmp_path / _LOST).touch()

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        commit.remove_abandoned(str(tmp_path))
    assert os.listdir(tmp_path) == [_LOST]
