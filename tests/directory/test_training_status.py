"""Tests that a directory allows one training at a time."""

import os
import subprocess
import sys

import pytest

from keras_tpu_estimator.base.common import system
from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.files.directory.state_file import (
    if_no_training,
    only_training,
)
from tests import windows

_HOLDER = """
import sys
from keras_tpu_estimator.files.directory.state_file import only_training
with only_training(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""

_FORKING = """
import os, sys
from keras_tpu_estimator.files.directory.state_file import only_training
with only_training(sys.argv[1]):
    worker = os.fork()
    if not worker:
        print("working", flush=True)
        sys.stdin.read()  # Even its orderly end leaves the lock alone.
    else:
        os.wait()
print("over", flush=True)
"""


def test_forked_worker_does_not_keep_the_lock(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _FORKING, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout.readline() == "working\n"
        with (
            pytest.raises(RuntimeError, match="Another training writes into"),
            only_training(tmp_path),
        ):
            pass
        holder.kill()
        holder.wait()
        with only_training(tmp_path):
            holder.stdin.close()
            assert holder.stdout.readline() == "over\n"


def test_other_process_is_refused_until_training_ends(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout.readline() == "locked\n"
        with (
            pytest.raises(RuntimeError, match="Another training writes into"),
            only_training(tmp_path),
        ):
            pass
        holder.kill()
    with only_training(tmp_path):
        assert os.listdir(tmp_path) == []


def test_lock_is_released_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), only_training(tmp_path):
        raise ZeroDivisionError
    with only_training(tmp_path), only_training(tmp_path.parent):
        pass


def test_empty_directory_is_removed(tmp_path):
    with only_training(tmp_path / "a" / "empty"):
        pass
    with only_training(tmp_path / "full"):
        (tmp_path / "full" / "file").touch()
    assert not (tmp_path / "a" / "empty").exists()
    assert (tmp_path / "full" / "file").exists()


def test_windows_locks_a_file_instead(tmp_path, monkeypatch):
    monkeypatch.setattr(system, "IS_WINDOWS", True)
    monkeypatch.setattr(commit, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", windows.msvcrt())
    directory = tmp_path / "run"
    for _ in range(2):
        with only_training(directory):
            assert os.listdir(directory) == [commit.LOCK_FILE]
            with (
                pytest.raises(RuntimeError, match="Another training writes"),
                only_training(directory),
            ):
                pass
            # Windows does not delete a file that another process has open.
            (directory / commit.LOCK_FILE).touch()
        assert not directory.exists()
    directory.mkdir()
    # A killed process leaves such a file.
    (directory / commit.LOCK_FILE).touch()
    with if_no_training(directory) as is_free:
        assert is_free
    assert os.listdir(directory) == []
