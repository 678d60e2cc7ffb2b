"""Tests directories with checkpoints that no `checkpoint` file lists."""

import os
import shutil

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
from keras_tpu_estimator.checkpoints import SaveFiles
from keras_tpu_estimator.files.directory import stale_files

X, Y = regression_data()


def estimator_in(directory, **config):
    return estimator_of(model_fn_of(linear), directory, config=config)


def copied(source, target):
    """Copies checkpoints without their list."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("checkpoint"))
    return target


CALLS = {
    "train": lambda e: e.train(repeated(X, Y), steps=4),
    "train max_steps": lambda e: e.train(repeated(X, Y), max_steps=4),
    "evaluate": lambda e: e.evaluate(batches_of(X, Y)),
    "predict": lambda e: next(e.predict(batches_of(X))),
    "latest": lambda e: e.latest_checkpoint(),
    "variables": lambda e: e.get_variable_names(),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directories = {}
    for name in ("hdf5", "tensorflow", "orbax"):
        directories[name] = tmp_path_factory.mktemp(name)
        estimator = estimator_in(directories[name], checkpoint_format=name)
        estimator.train(repeated(X, Y), max_steps=4)
        estimator.train(repeated(X, Y), max_steps=12)
    return directories


@pytest.mark.parametrize("name", ["hdf5", "tensorflow", "orbax"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_checkpoints_without_a_list_are_an_error(trained, tmp_path, name, call):
    directory = copied(trained[name], tmp_path / "copy")
    before = sorted(os.listdir(directory))
    estimator = estimator_in(directory, checkpoint_format=name)
    with pytest.raises(ValueError, match="model.ckpt-12', 'model.ckpt-4'"):
        call(estimator)
    assert sorted(os.listdir(directory)) == before


def test_error_has_advice_to_continue(trained, tmp_path):
    directory = copied(trained["hdf5"], tmp_path / "copy")
    with pytest.raises(ValueError, match="write the line") as caught:
        estimator_in(directory).evaluate(batches_of(X, Y))
    line = str(caught.value).split("'")[-5:]
    (line,) = [each for each in line if each.startswith("model_checkpoint")]
    (directory / "checkpoint").write_text(line)
    result = estimator_in(directory).evaluate(batches_of(X, Y))
    assert result["global_step"] == 12


def test_a_list_of_missing_checkpoints_is_an_error(trained, tmp_path):
    directory = copied(trained["hdf5"], tmp_path / "copy")
    (directory / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-99"')
    with pytest.raises(ValueError, match=r"model\.ckpt-12"):
        estimator_in(directory).evaluate(batches_of(X, Y))


def test_named_checkpoint_is_used(trained, tmp_path):
    directory = copied(trained["hdf5"], tmp_path / "copy")
    result = estimator_in(directory).evaluate(
        batches_of(X, Y), checkpoint_path=str(directory / "model.ckpt-4")
    )
    assert result["global_step"] == 4


def test_save_of_a_killed_process_is_ignored(tmp_path):
    saved = SaveFiles.at(checkpoints.save(tmp_path, 20, {}))
    saved.mark_unlisted()
    (tmp_path / "checkpoint").unlink()
    stale_files.check_listed(str(tmp_path))
    estimator_in(tmp_path).train(repeated(X, Y), max_steps=4)
    assert checkpoints.step_of(tmp_path) == 4


@pytest.mark.parametrize(
    "name", ["bert.ckpt-7.h5", "model.ckpt.index", "model.ckpt-5.weights.h5"]
)
def test_files_of_other_programs_are_ignored(tmp_path, name):
    (tmp_path / name).touch()
    stale_files.check_listed(str(tmp_path))


def test_many_are_counted(tmp_path):
    for step in range(8):
        (tmp_path / f"model.ckpt-{step}.h5").touch()
    with pytest.raises(ValueError, match="'model.ckpt-3' and 3 more"):
        stale_files.check_listed(str(tmp_path))
