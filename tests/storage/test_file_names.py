"""Folders that users name: reserved names, and names that differ in case."""

import os
import unicodedata

import pytest
from helpers import batches_of, estimator_of, linear, model_fn_of, regression_data

import keras_tpu_estimator as kte
from keras_tpu_estimator.export import folders
from keras_tpu_estimator.ground.base import operating_system
from keras_tpu_estimator.ground.storage import file_names
from keras_tpu_estimator.spec.hooks.checkpoint_saver import CheckpointSaverHook

X, Y = regression_data(16)


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
def test_what_windows_reserves(monkeypatch, name, is_allowed):
    file_names.check("`name`", name)
    monkeypatch.setattr(operating_system, "IS_WINDOWS", True)
    if is_allowed:
        file_names.check("`name`", name)
    else:
        with pytest.raises(ValueError, match="`name` must .*Windows allows"):
            file_names.check("`name`", name)


def test_it_is_said_before_anything_is_trained(monkeypatch):
    monkeypatch.setattr(operating_system, "IS_WINDOWS", True)
    with pytest.raises(ValueError, match="eval_a:b"):
        kte.EvalSpec(batches_of(X, Y), name="a:b")
    with pytest.raises(ValueError, match=r"Received: 'aux'"):
        kte.LatestExporter("aux", lambda: None)
    with pytest.raises(ValueError, match="`checkpoint_basename` must"):
        CheckpointSaverHook("run", save_steps=1, checkpoint_basename="model*")


@pytest.fixture
def without_case(monkeypatch):
    """Has `os.path.isdir` and `exists` find names in whatever case."""

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


def test_where_case_counts_both_have_a_folder(tmp_path):
    for name in ("Test", "test"):
        file_names.check_folder("`name`", str(tmp_path / name))
        (tmp_path / name).mkdir()
    file_names.check_folder("`name`", str(tmp_path / "Test"))
    file_names.check_folder("`name`", "memory://nowhere/Test")


@pytest.mark.usefixtures("without_case")
def test_no_asset_replaces_another(tmp_path):
    source = tmp_path / "vocabulary"
    source.touch()
    with pytest.raises(ValueError, match="Rename 'words.txt'"):
        folders.copy_assets(str(tmp_path), {"Words.txt": source, "words.txt": source})
