"""Tests that files that other users may write are not read."""

import os
import pathlib

import pytest

from keras_tpu_estimator.base.common import system
from keras_tpu_estimator.base.storage import trusted


@pytest.fixture
def note(tmp_path):
    """A file in nested folders."""
    file = tmp_path / "above" / "folder" / "note"
    file.parent.mkdir(parents=True, mode=0o755)
    for path in (file.parent, file.parent.parent):
        path.chmod(0o755)
    file.write_bytes(b"mine")
    file.chmod(0o644)
    return file


def test_own_file_is_read(note):
    assert trusted.read(str(note)) == b"mine"
    with pytest.raises(FileNotFoundError):
        trusted.read(str(note) + "s")


@pytest.mark.parametrize("levels", [0, 1, 2])
@pytest.mark.parametrize("bit", [0o020, 0o002])
def test_file_that_others_may_write_is_refused(note, levels, bit):
    path = (note, *note.parents)[levels]
    path.chmod(path.stat().st_mode | bit)
    with pytest.raises(PermissionError, match=f"`chmod go-w {path}`"):
        trusted.read(str(note))
    path.chmod(path.stat().st_mode & ~bit)
    assert trusted.read(str(note)) == b"mine"


def test_others_may_add_names(note):
    note.parent.parent.chmod(0o1777)
    assert trusted.read(str(note)) == b"mine"
    # Files have no sticky bit.
    note.chmod(0o1666)
    with pytest.raises(PermissionError, match="the mode 1666"):
        trusted.read(str(note))


@pytest.mark.parametrize("levels", [0, 1])
def test_file_of_another_user_is_refused(note, monkeypatch, levels):
    path = (note, *note.parents)[levels]
    real_stat, real_fstat = os.stat, os.fstat
    number = real_stat(path).st_ino

    def with_owner(status):
        if status.st_ino != number:
            return status
        fields = [*status]
        fields[4] = os.geteuid() + 4321
        return os.stat_result(fields)

    monkeypatch.setattr(
        os,
        "stat",
        lambda *args, **kwargs: with_owner(real_stat(*args, **kwargs)),
    )
    monkeypatch.setattr(
        os, "fstat", lambda descriptor: with_owner(real_fstat(descriptor))
    )
    with pytest.raises(PermissionError, match=f"chown {os.geteuid()} {path}"):
        trusted.read(str(note))


def test_target_of_a_link_is_checked(note, tmp_path):
    safe, unsafe = tmp_path / "safe", tmp_path / "unsafe"
    for folder in (safe, unsafe):
        folder.mkdir()
    safe.chmod(0o755)
    unsafe.chmod(0o777)
    (safe / "note").symlink_to(note)
    assert trusted.read(str(safe / "note")) == b"mine"
    (unsafe / "note").write_bytes(b"theirs")
    (safe / "theirs").symlink_to(unsafe / "note")
    (safe / "folder").symlink_to(unsafe)
    for path in (safe / "theirs", safe / "folder" / "note"):
        with pytest.raises(PermissionError, match=f"folder '{unsafe}'"):
            trusted.read(str(path))


def test_folders(note):
    trusted.check_folder(str(note.parent))
    note.parent.chmod(0o775)
    with pytest.raises(PermissionError, match="Use another folder"):
        trusted.check_folder(str(note.parent))
    with pytest.raises(FileNotFoundError):
        trusted.check_folder(str(note.parent / "nowhere"))


def test_others_may_not_add_names_to_a_cache(note, monkeypatch):
    folder = note.parent
    trusted.check_cache(str(folder))
    note.parent.parent.chmod(0o1777)
    trusted.check_cache(str(folder))
    for mode in (0o1777, 0o777, 0o770):
        folder.chmod(mode)
        with pytest.raises(PermissionError, match=f"the mode {mode:o}"):
            trusted.check_cache(str(folder))
    with pytest.raises(FileNotFoundError):
        trusted.check_cache(str(folder / "nowhere"))
    monkeypatch.setattr(system, "IS_WINDOWS", True)
    trusted.check_cache(str(folder))


def test_folder_must_be_a_local_path():
    path = pathlib.Path("/compiled")
    assert trusted.folder_string("`save`", path) == "/compiled"
    with pytest.raises(ValueError, match="`save` must be a local folder"):
        trusted.folder_string("`save`", "gs://bucket/compiled")
    with pytest.raises(ValueError, match="an empty string"):
        trusted.folder_string("`save`", "")
    with pytest.raises(TypeError, match="`save` must be a path"):
        trusted.folder_string("`save`", 3)
