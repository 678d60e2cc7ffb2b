"""Tests that directories and URLs give the same answers."""

import os
import unicodedata

import fsspec
import pytest
from helpers import batches_of, estimator_of, linear, model_fn_of, regression_data

import keras_tpu_estimator as kte
from keras_tpu_estimator.base.common import system
from keras_tpu_estimator.base.storage import paths, transfers
from keras_tpu_estimator.export import folders
from keras_tpu_estimator.hooks import CheckpointSaverHook

FILES = ("a.txt", "b.txt", "deep/c.txt")


X, Y = regression_data(16)


@pytest.fixture(params=["local", "memory", "shelf"])
def root(request, tmp_path):
    """A directory with several files, as a path or a URL."""
    if request.param == "local":
        root = str(tmp_path)
    else:
        request.getfixturevalue(request.param)
        root = f"{request.param}://bucket/run"
    for name in FILES:
        if request.param == "local":
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(name)
        else:
            transfers.put_bytes(name.encode(), f"{root}/{name}")
    return root


def test_existing_files(root):
    assert paths.is_file(f"{root}/a.txt")
    assert not paths.is_directory(f"{root}/a.txt")
    assert paths.is_directory(f"{root}/deep")
    assert not paths.is_file(f"{root}/deep")
    assert not paths.is_file(f"{root}/nothing")
    assert not paths.is_directory(f"{root}/nothing")
    assert sorted(paths.names_in(root)) == ["a.txt", "b.txt", "deep"]


def test_matching_files_can_be_read(root):
    found = paths.matching(f"{root}/*/c.???")
    assert len(found) == 1
    with paths.opened(found[0]) as file:
        assert file.read() == b"deep/c.txt"
    assert paths.matching(f"{root}/*.md") == []


def test_sizes_of_all_files(root):
    assert paths.sizes_in(root) == {name: len(name) for name in FILES}
    assert paths.sizes_in(f"{root}/") == paths.sizes_in(root)
    assert paths.sizes_in(f"{root}/nothing") == {}


def test_linked_folders_count_once(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a.txt").write_text("a")
    (tmp_path / "run" / "again").symlink_to(".")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.txt").write_text("bb")
    (tmp_path / "latest").symlink_to("run")
    (tmp_path / "run" / "linked").symlink_to(tmp_path / "elsewhere")
    sizes = {"a.txt": 1, "linked/b.txt": 2}
    assert paths.sizes_in(str(tmp_path / "run")) == sizes
    assert paths.sizes_in(str(tmp_path / "latest")) == sizes
    (tmp_path / "run" / "linked").unlink()
    sizes = {"elsewhere/b.txt": 2, "run/a.txt": 1}
    assert paths.sizes_in(str(tmp_path)) == sizes


def test_removed_files_are_missing(root):
    paths.remove(f"{root}/a.txt")
    paths.remove(f"{root}/deep")
    assert paths.names_in(root) == ["b.txt"]
    with pytest.raises(FileNotFoundError):
        paths.remove(f"{root}/a.txt")
    with pytest.raises(FileNotFoundError):
        paths.opened(f"{root}/a.txt")


def test_new_content_is_a_new_version(root, tmp_path):
    before = paths.version(f"{root}/a.txt")
    assert paths.version(f"{root}/a.txt") == before
    (tmp_path / "new").write_text("another content")
    transfers.put(str(tmp_path / "new"), f"{root}/a.txt")
    assert paths.version(f"{root}/a.txt") != before
    with pytest.raises(FileNotFoundError):
        paths.version(f"{root}/nothing")


def test_failing_store_does_not_look_empty(memory, monkeypatch):
    def info(path, **_):
        raise PermissionError("no access to the bucket")

    monkeypatch.setattr(memory.__class__, "info", lambda self, path: info(path))
    for question in (paths.is_file, paths.is_directory, paths.version):
        with pytest.raises(PermissionError, match="no access"):
            question("memory://bucket/run")


def test_listings_are_not_cached():
    filesystem, _ = paths.located("memory://bucket/run")
    assert filesystem.storage_options["use_listings_cache"] is False


def test_saved_model_is_uploaded_last(memory, tmp_path, monkeypatch):
    order = []
    put = transfers.put

    def noted(local, path):
        order.append(path)
        put(local, path)

    monkeypatch.setattr(transfers, "put", noted)
    for name in ("saved_model.pb", "variables/v.index", "assets.extra/words"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    transfers.put_tree(str(tmp_path), "memory://bucket/export/1")
    assert order[-1] == "memory://bucket/export/1/saved_model.pb"
    assert len(memory.store) == len(order) == 3


def test_failed_copy_of_a_folder_leaves_nothing(memory, tmp_path, monkeypatch):
    put = transfers.put

    def put_or_fail(local, path):
        if path.endswith("saved_model.pb"):
            raise OSError("quota exceeded")
        put(local, path)

    monkeypatch.setattr(transfers, "put", put_or_fail)
    for name in ("saved_model.pb", "words"):
        (tmp_path / name).write_text(name)
    with pytest.raises(OSError, match="quota"):
        transfers.put_tree(str(tmp_path), "memory://bucket/export/1")
    assert not memory.store


def test_directories_are_made_if_the_store_has_them(shelf):
    transfers.put_bytes(b"content", "shelf://new/deep/file")
    assert (shelf / "new/deep/file").read_bytes() == b"content"
    assert fsspec.filesystem("shelf").unstrip_protocol(str(shelf / "new")) == (
        "shelf://new"
    )


@pytest.mark.parametrize(
    ("name", "is_allowed"),
    [
        ("eval_test", True),
        ("eval_con", True),
        ("console", True),
        ("a.b", True),
        ("größe", True),
        ("con", False),
        ("NUL.txt", False),
        ("Com1", False),
        ("a:b", False),
        ("loss<1", False),
        ("what?", False),
        ("end.", False),
        ("end ", False),
        ("two\nlines", False),
    ],
)
def test_reserved_names_of_windows_are_refused(monkeypatch, name, is_allowed):
    paths.check_name("`name`", name)
    monkeypatch.setattr(system, "IS_WINDOWS", True)
    if is_allowed:
        paths.check_name("`name`", name)
    else:
        with pytest.raises(ValueError, match="`name` must .*Windows allows"):
            paths.check_name("`name`", name)


def test_reserved_names_are_refused_before_training(monkeypatch):
    monkeypatch.setattr(system, "IS_WINDOWS", True)
    with pytest.raises(ValueError, match="eval_a:b"):
        kte.EvalSpec(batches_of(X, Y), name="a:b")
    with pytest.raises(ValueError, match=r"Received: 'aux'"):
        kte.LatestExporter("aux", lambda: None)
    with pytest.raises(ValueError, match="`checkpoint_basename` must"):
        CheckpointSaverHook("run", save_steps=1, checkpoint_basename="model*")


@pytest.fixture
def without_case(monkeypatch):
    """Makes `os.path.isdir` and `exists` ignore the case of names."""

    def found(path):
        folder, name = os.path.split(path)
        names = os.listdir(folder) if exists(folder) else []
        alike = (n for n in names if folded(n) == folded(name))
        return os.path.join(folder, next(alike, name))

    def folded(name):
        return unicodedata.normalize("NFD", name).lower()

    exists, isdir = os.path.exists, os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda path: isdir(found(path)))
    monkeypatch.setattr(os.path, "exists", lambda path: exists(found(path)))


@pytest.mark.usefixtures("without_case")
@pytest.mark.parametrize(
    ("first", "second"), [("Test", "test"), ("caf\u00e9", "cafe\u0301")]
)
def test_two_evaluations_do_not_share_a_folder(tmp_path, first, second):
    estimator = estimator_of(model_fn_of(linear), tmp_path)
    estimator.train(batches_of(X, Y), steps=1)
    for _ in range(2):
        estimator.evaluate(batches_of(X, Y), name=first)
    with pytest.raises(ValueError, match=f"folder 'eval_{first}'"):
        estimator.evaluate(batches_of(X, Y), name=second)


def test_names_of_different_case_have_folders_if_case_matters(tmp_path):
    for name in ("Test", "test"):
        paths.check_folder_name("`name`", str(tmp_path / name))
        (tmp_path / name).mkdir()
    paths.check_folder_name("`name`", str(tmp_path / "Test"))
    paths.check_folder_name("`name`", "memory://nowhere/Test")


@pytest.mark.usefixtures("without_case")
def test_assets_do_not_replace_each_other(tmp_path):
    source = tmp_path / "vocabulary"
    source.touch()
    with pytest.raises(ValueError, match="Rename 'words.txt'"):
        folders.copy_assets(str(tmp_path), {"Words.txt": source, "words.txt": source})
