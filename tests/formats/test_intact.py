"""Tests the behavior if the newest checkpoint is corrupt."""

import logging
import os
import shutil

import numpy as np
import pytest
from helpers import (
    batches_of,
    estimator_of,
    linear,
    model_fn_of,
    regression_data,
    repeated,
)

from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.files.atomic import checksum
from keras_tpu_estimator.files.formats import reader

X, Y = regression_data()


def damage(directory, step):
    """Changes a bit of the data of a checkpoint."""
    path = directory / f"model.ckpt-{step}.h5"
    with open(path, "rb+") as file:
        piece = next(iter(checksum.load(str(path)).values()))
        file.seek(piece.offset)
        byte = file.read(1)[0]
        file.seek(piece.offset)
        file.write(bytes([byte ^ 1]))
    os.utime(path, (1, 1))  # File times may have a coarse resolution.
    return str(path)


def cut(directory, step):
    path = directory / f"model.ckpt-{step}.h5"
    os.truncate(path, 1000)
    return str(path)


@pytest.fixture
def saved(tmp_path):
    for step in (0, 10, 20):
        checkpoints.save(tmp_path, step, {"v": np.ones(3)})
    return tmp_path


@pytest.mark.parametrize("how", [damage, cut])
def test_previous_checkpoint_is_used_and_the_corrupt_one_named(saved, caplog, how):
    path = how(saved, 20)
    for _ in range(2):
        found = checkpoints.latest_intact(saved)
        assert found == str(saved / "model.ckpt-10")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{path!r} is truncated or corrupt. Using {found!r}" in caplog.text


def test_several_are_corrupt_or_missing(saved):
    damage(saved, 20)
    os.remove(saved / "model.ckpt-10.h5")
    assert checkpoints.latest_intact(saved) == str(saved / "model.ckpt-0")


def test_all_checkpoints_are_corrupt(saved):
    for step in (0, 10, 20):
        damage(saved, step)
    with pytest.raises(ValueError, match="All checkpoints .*ckpt-20.h5'. Copy"):
        checkpoints.latest_intact(saved)


def test_corrupt_file_is_read_once(saved, monkeypatch):
    damage(saved, 20)
    checkpoints.latest_intact(saved)
    monkeypatch.setattr(checksum, "check", None)
    assert checkpoints.latest_intact(saved) == str(saved / "model.ckpt-10")


def test_repaired_file_is_used(saved):
    copy = shutil.copy(saved / "model.ckpt-20.h5", saved / "copy")
    damage(saved, 20)
    checkpoints.latest_intact(saved)
    os.replace(copy, saved / "model.ckpt-20.h5")
    assert checkpoints.latest_intact(saved) == str(saved / "model.ckpt-20")


def test_cache_of_checks_is_bounded(tmp_path, monkeypatch):
    known = dict.fromkeys("abcd", True)
    monkeypatch.setattr(reader, "_KNOWN", known)
    monkeypatch.setattr(reader, "_MOST_KNOWN", len(known))
    for step in range(5):
        checkpoints.save(tmp_path, step, {})
    assert len(known) == 4
    assert not known.keys() & {*"abcd"}


def test_intact_and_missing_checkpoints_are_found_as_before(saved, caplog):
    assert checkpoints.latest_intact(saved / "missing") is None
    assert checkpoints.latest_intact(saved) == str(saved / "model.ckpt-20")
    assert not caplog.records


@pytest.fixture
def trained(tmp_path):
    estimator = linear_estimator(tmp_path)
    for _ in range(2):
        estimator.train(repeated(X, Y), steps=4)
    damage(tmp_path, 8)
    return linear_estimator(tmp_path)  # A new process has an empty cache.


def linear_estimator(directory):
    return estimator_of(model_fn_of(linear), directory)


def test_training_resumes_from_the_previous_checkpoint(trained, tmp_path, caplog):
    trained.train(repeated(X, Y), max_steps=8)
    assert "model.ckpt-8.h5' is truncated or corrupt" in caplog.text
    assert checkpoints.latest_intact(tmp_path).endswith("model.ckpt-8")


def test_evaluation_prediction_and_reading_use_the_previous_checkpoint(trained):
    assert trained.evaluate(batches_of(X, Y))["global_step"] == 4
    assert len(list(trained.predict(batches_of(X)))) == len(X)
    assert trained.get_variable_value("global_step") == 4


def test_named_corrupt_checkpoint_is_an_error(trained, tmp_path):
    path = tmp_path / "model.ckpt-8"
    with pytest.raises(ValueError, match="model.ckpt-8.h5' is truncated or"):
        trained.evaluate(batches_of(X, Y), checkpoint_path=path)
    with pytest.raises(ValueError, match="model.ckpt-8.h5' is truncated or"):
        next(trained.predict(batches_of(X), checkpoint_path=path))
