import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest

from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.files.atomic import commit

_KILLED_WHILE_SAVING = """
import os, signal, sys
import numpy as np
from keras_tpu_estimator import checkpoints

replace, left = os.replace, [int(sys.argv[2])]

def replaces(*paths):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*paths)

os.replace = replaces
checkpoints.save(sys.argv[1], 20, {"v": np.ones(5)})
"""


@pytest.mark.rows(2)
@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize(
    ("number", "main"), [("1", set()), ("2", {"model.ckpt-20.h5"})]
)
def test_killed_save_is_ignored_and_later_removed(tmp_path, number, main):
    """The save is killed before its main file exists, or before the list names it."""
    first = checkpoints.save(tmp_path, 10, {"v": np.zeros(5)})
    before = set(os.listdir(tmp_path))

    child = subprocess.run(
        [sys.executable, "-c", _KILLED_WHILE_SAVING, str(tmp_path), number]
    )

    assert child.returncode == -signal.SIGKILL
    assert main < set(os.listdir(tmp_path)) - before
    assert checkpoints.latest(tmp_path) == first
    if not main:
        with pytest.raises(ValueError, match="Checkpoints in .*: model.ckpt-10"):
            checkpoints.resolve(tmp_path / "model.ckpt-20")

    checkpoints.save(tmp_path, 30, {"v": np.zeros(5)})
    assert set(os.listdir(tmp_path)) == before | {"model.ckpt-30.h5"}


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_failed_save_does_not_change_the_directory(tmp_path, monkeypatch, function):
    first = checkpoints.save(tmp_path, 10, {"v": np.zeros(5)})
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def disk_full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, function, disk_full)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(tmp_path, 20, {"v": np.ones(5)})

    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert checkpoints.latest(tmp_path) == first


def test_existing_file_stays_until_the_new_one_is_complete(tmp_path):
    target = tmp_path / "file"
    target.write_text("old")

    with commit.replacing(str(target)) as partial:
        with open(partial, "w") as file:
            file.write("new")
        assert target.read_text() == "old"

    assert target.read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


def test_content_reaches_the_disk_before_the_name(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)
        monkeypatch.setattr(
            os,
            name,
            lambda *args, name=name, original=original: (
                calls.append(name),
                original(*args),
            ),
        )

    checkpoints.save(tmp_path, 1, {})

    # The checkpoint precedes its list, and each content precedes its name.
    assert calls == ["fsync", "replace", "fsync"] * 2


@pytest.mark.parametrize(
    ("number", "expectation"),
    [
        (errno.EINVAL, contextlib.nullcontext()),
        (errno.EIO, pytest.raises(OSError, match="Input/output error")),
    ],
)
def test_unsyncable_directories_are_accepted(
    tmp_path, monkeypatch, number, expectation
):
    original = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with expectation:
        checkpoints.save(tmp_path, 1, {})


def test_error_of_a_full_disk_names_the_file(tmp_path):
    path = str(tmp_path / "file")
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        with commit.replacing(path):
            raise OSError(28, "No space left on device")
    other = FileNotFoundError(2, "No such file", "other")
    with pytest.raises(FileNotFoundError, match="'other'"):
        with commit.replacing(path):
            raise other
