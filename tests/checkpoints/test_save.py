import os
import types

import numpy as np
import pytest

import keras_tpu_estimator as kte
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.files.checkpoints import saving


def test_files_and_prefix_match_tensorflow(tmp_path):
    directory = tmp_path / "new" / "model_dir"

    prefix = checkpoints.save(directory, np.int64(20), {"v": np.ones(1)})

    assert prefix == str(directory / "model.ckpt-20")
    assert sorted(os.listdir(directory)) == ["checkpoint", "model.ckpt-20.h5"]
    assert (directory / "checkpoint").read_text().splitlines()[:2] == [
        'model_checkpoint_path: "model.ckpt-20"',
        'all_model_checkpoint_paths: "model.ckpt-20"',
    ]


def test_global_step_is_that_of_the_call(tmp_path):
    variables = {"global_step": np.int32(3)}
    prefix = checkpoints.save(tmp_path, 20, variables)
    restored = kte.load_variable(prefix, "global_step")
    assert (restored, restored.dtype) == (20, np.int64)
    assert variables == {"global_step": 3}


def test_saving_a_step_again_replaces_it(tmp_path):
    for value in (1.0, 2.0):
        prefix = checkpoints.save(tmp_path, 20, {"v": np.float32(value)})
        assert kte.load_variable(prefix, "v") == value


@pytest.mark.parametrize(
    ("step", "error", "message"),
    [
        (-1, ValueError, "`step` must be zero or positive. Received: -1"),
        (2.5, TypeError, "'float' object cannot be interpreted as an integer"),
    ],
)
def test_step_is_checked(tmp_path, step, error, message):
    with pytest.raises(error, match=message):
        checkpoints.save(tmp_path / "model_dir", step, {})
    assert not (tmp_path / "model_dir").exists()


@pytest.mark.parametrize("format_name", ["hdf5", "tensorflow", "orbax"])
@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (1, TypeError, "must be strings. Received: 1 of type int"),
        ("", ValueError, "must not be empty. Received: ''"),
    ],
)
def test_names_are_checked(tmp_path, format_name, name, error, message):
    with pytest.raises(error, match=message):
        checkpoints.save(
            tmp_path / "model_dir",
            1,
            {name: np.ones(1)},
            format_name=format_name,
        )
    assert not (tmp_path / "model_dir").exists()


def test_formats_are_checked(tmp_path):
    with pytest.raises(ValueError, match="one of .*'orbax'.*Received: 'h5'"):
        checkpoints.save(tmp_path / "model_dir", 1, {}, format_name="h5")
    assert not (tmp_path / "model_dir").exists()


def test_time_is_that_of_the_clock(tmp_path, monkeypatch):
    clock = types.SimpleNamespace(time=lambda: 1234.5)
    monkeypatch.setattr(saving, "time", clock)
    checkpoints.save(tmp_path, 1, {})
    line = (tmp_path / "checkpoint").read_text().splitlines()[2]
    assert float(line.split(": ")[1]) == 1234.5
