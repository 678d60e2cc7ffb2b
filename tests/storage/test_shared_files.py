"""Tests that operations that Windows refuses for open files are retried."""

import os
import time

import numpy as np
import pytest

from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.base.common import system
from keras_tpu_estimator.base.storage import shared_files
from keras_tpu_estimator.files.atomic import checksum, commit


@pytest.fixture
def pauses(monkeypatch):
    """Records the pauses without waiting."""
    made = []
    monkeypatch.setattr(time, "sleep", made.append)
    return made


def refusing(monkeypatch, name, times):
    """Makes a function of `os` refuse its first calls, as if a file were open."""
    function, left = getattr(os, name), iter(range(times))

    def refused(*arguments, **keywords):
        if next(left, None) is not None:
            raise PermissionError(13, "The process cannot access the file")
        return function(*arguments, **keywords)

    monkeypatch.setattr(os, name, refused)


@pytest.fixture
def windows(monkeypatch):
    monkeypatch.setattr(system, "IS_WINDOWS", True)


@pytest.fixture
def elsewhere(tmp_path):
    """A folder outside the removed one, which must not change."""
    folder = tmp_path / "elsewhere"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_bytes(b"precious")
    yield folder
    assert (folder / "deep" / "file").read_bytes() == b"precious"


@pytest.mark.parametrize("target", ["", "deep", "deep/file", "missing"])
def test_links_are_removed_and_not_followed(tmp_path, elsewhere, target):
    link, folder = tmp_path / "link", tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    for each in (link, folder / "link", folder / "inner" / "link"):
        each.symlink_to(elsewhere / target)
    shared_files.remove(str(link))
    shared_files.remove(str(folder))
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


def test_marker_is_removed_last(tmp_path, monkeypatch):
    (tmp_path / "folder" / "b").mkdir(parents=True)
    for name in ("a", "b/c", "d"):
        (tmp_path / "folder" / name).touch()
    with monkeypatch.context() as patch:
        refusing(patch, "rmdir", 1)
        with pytest.raises(PermissionError):
            shared_files.remove(str(tmp_path / "folder"), last="a")
        assert (tmp_path / "folder" / "a").exists()
    shared_files.remove(str(tmp_path / "folder"), last="a")
    assert not (tmp_path / "folder").exists()


@pytest.mark.usefixtures("windows")
def test_rename_succeeds_after_the_reader_has_closed_the_file(
    tmp_path, monkeypatch, pauses
):
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "file").write_bytes(b"old")
    refusing(monkeypatch, "replace", 3)
    shared_files.replace(str(tmp_path / "new"), str(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == b"new"
    assert len(pauses) == 3


@pytest.mark.usefixtures("windows")
def test_repeated_refusals_are_an_error(tmp_path, monkeypatch, pauses):
    refusing(monkeypatch, "remove", 100)
    (tmp_path / "file").touch()
    with pytest.raises(PermissionError, match="cannot access the file"):
        shared_files.remove(str(tmp_path / "file"))
    assert sum(pauses) == pytest.approx(5.0)


def test_linux_does_not_wait(tmp_path, monkeypatch, pauses):
    refusing(monkeypatch, "remove", 1)
    (tmp_path / "file").touch()
    with pytest.raises(PermissionError):
        shared_files.remove(str(tmp_path / "file"))
    with (
        pytest.raises(PermissionError),
        shared_files.left_if_in_use("file"),
    ):
        raise PermissionError
    assert pauses == []


@pytest.mark.usefixtures("windows")
def test_directories_are_not_retried(tmp_path, pauses):
    with pytest.raises(OSError, match="irectory"):
        shared_files.opened(str(tmp_path))
    assert pauses == []


@pytest.mark.usefixtures("windows", "pauses")
@pytest.mark.parametrize("format_name", ["hdf5", "orbax", "tensorflow"])
def test_checkpoint_read_by_an_evaluation_is_removed_later(
    tmp_path, monkeypatch, caplog, format_name
):
    def save(step):
        return checkpoints.save(
            tmp_path,
            step,
            {"x": [1.0, 2.0]},
            retention=checkpoints.Retention(1),
            format_name=format_name,
        )

    def names():
        return [n for n in os.listdir(tmp_path) if n.startswith("model.ckpt-1")]

    def refused(path):
        if str(path).startswith(first):
            raise PermissionError(13, "The process cannot access the file")
        remove(path)

    first, remove = save(10), os.remove
    with monkeypatch.context() as patch:
        patch.setattr(os, "remove", refused)
        second = save(20)
    assert checkpoints.latest(tmp_path) == second
    assert checkpoints.read(first)["x"].tolist() == [1.0, 2.0]
    assert "model.ckpt-10 cannot be deleted now" in caplog.text
    save(30)
    assert names() == []


@pytest.mark.usefixtures("windows", "pauses")
def test_files_that_another_process_writes_are_kept(tmp_path, monkeypatch):
    lost = tmp_path / "best.json.0f0f0f0f.kte-partial"
    lost.touch()
    os.utime(lost, (0, 0))
    with monkeypatch.context() as patch:
        refusing(patch, "remove", 100)
        commit.remove_abandoned(str(tmp_path))
    assert lost.exists()
    commit.remove_abandoned(str(tmp_path))
    assert not lost.exists()


@pytest.fixture(params=[True, False], ids=["posix", "windows"])
def calls(request, monkeypatch):
    """With and without the functions that Windows and old macOS releases lack."""
    if not request.param:
        monkeypatch.delattr(os, "preadv")
        monkeypatch.delattr(os, "pwrite")


@pytest.mark.usefixtures("calls")
def test_file_position_is_kept(tmp_path):
    with open(tmp_path / "file", "wb+") as file:
        file.write(b"content")
        file.flush()
        file.seek(3)
        memory = memoryview(bytearray(9))
        assert shared_files.read_at(file.fileno(), memory, 1) == 6
        assert bytes(memory[:6]) == b"ontent"
        assert shared_files.write_at(file.fileno(), memoryview(b"C"), 0) == 1
        assert file.read() == b"tent"
        assert shared_files.read_at(file.fileno(), memory, 7) == 0
    assert (tmp_path / "file").read_bytes() == b"Content"


@pytest.mark.usefixtures("calls")
def test_several_threads_read_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr(checksum, "_PIECE", 1000)
    monkeypatch.setattr(checksum, "_CHUNK", 300)
    path = str(tmp_path / "file")
    array = np.arange(50_000, dtype="int32")
    with open(path, "wb") as file:
        file.write(b"before")
    written = checksum.write(path, [checksum.Extent.from_array(6, array)])
    checksum.append(path, written)
    found = np.empty_like(array)
    loaded = checksum.load(path)
    assert len(loaded) == 200
    checksum.read(path, [checksum.Extent.from_array(6, found)], loaded)
    np.testing.assert_array_equal(found, array)
    assert checksum.is_right(path)
