"""Tests checkpoints in TensorFlow's format that this package writes."""

import os
import resource
import signal
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import tensorflow.compat.v1 as tf  # noqa: TID253 - reads the written files
from helpers import some_slow

import keras_tpu_estimator as kte
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.checkpoints import SaveFiles
from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.files.formats import tensorflow_format

VALUES = {
    "dense/kernel": np.arange(6, dtype="float32").reshape(2, 3),
    "dense/kernel/Adam": np.ones((2, 3), "float32"),
    "mask": np.array([True, False]),
    "half": np.arange(3).astype(ml_dtypes.bfloat16),
    "count": np.int64(2**40),
    "empty": np.zeros((0, 4), "int32"),
}
_ENDS = [".index", ".data-00000-of-00001", ".meta"]
_KILLED_WHILE_SAVING = """
import os, signal, sys
import numpy as np
from keras_tpu_estimator import checkpoints
replace = os.replace
def dying(source, target):
    if target.endswith(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
os.replace = dying
checkpoints.save(
    sys.argv[1], 20, {"v": np.ones(5)}, format_name="tensorflow")
"""


def save(directory, step, values=VALUES, **kwargs):
    return checkpoints.save(directory, step, values, format_name="tensorflow", **kwargs)


def test_tensorflow_reads_our_checkpoint(tmp_path):
    prefix = save(tmp_path, 20)
    assert tf.train.latest_checkpoint(str(tmp_path)) == prefix
    reader = tf.train.NewCheckpointReader(prefix)
    assert reader.get_tensor("global_step") == 20
    assert reader.get_variable_to_dtype_map()["global_step"] == tf.int64
    for name, value in VALUES.items():
        read = reader.get_tensor(name)
        assert np.array_equal(read, value)
        assert read.dtype == value.dtype


def test_saver_restores_our_checkpoint(tmp_path):
    prefix = save(tmp_path, 20)
    with tf.Graph().as_default(), tf.Session() as session:
        made = {
            name: tf.get_variable(name, value.shape, value.dtype)
            for name, value in VALUES.items()
        }
        tf.train.Saver().restore(session, prefix)
        for name, value in session.run(made).items():
            assert np.array_equal(value, VALUES[name])


def test_meta_file_makes_the_variables_and_a_saver(tmp_path):
    values = VALUES | {"Dense Layer:0/kernel": np.ones(3)}
    prefix = save(tmp_path, 20, values)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.import_meta_graph(prefix + ".meta").restore(session, prefix)
        made = {v.op.name: v for v in tf.global_variables()}
        read = session.run(made)
    assert np.array_equal(read.pop("Dense_Layer_0/kernel"), np.ones(3))
    assert read.pop("global_step") == 20
    assert read.keys() == VALUES.keys()
    for name, value in VALUES.items():
        assert np.array_equal(read[name], value)
        assert read[name].dtype == value.dtype


def test_meta_file_has_the_variables_of_collections(tmp_path):
    values = VALUES | {"eighth": np.ones(3, ml_dtypes.float8_e5m2)}
    prefix = str(tmp_path / "model.ckpt-20")
    collections = {"trainable_variables": ["dense/kernel"], "mine": ["mask", "gone"]}
    files = SaveFiles(prefix, collections=collections)
    tensorflow_format.write(files, values | {"global_step": np.int64(20)})
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.import_meta_graph(prefix + ".meta").restore(session, prefix)
        assert [v.op.name for v in tf.trainable_variables()] == ["dense/kernel"]
        assert [v.op.name for v in tf.get_collection("mine")] == ["mask"]
        assert len(tf.get_collection("savers")) == 1
        assert session.run(tf.train.get_global_step()) == 20
        # A tensor of this name is the value of a variable.
        read = session.run({name: f"{name}:0" for name in VALUES})
        eighth = session.run(tf.global_variables())[-2]
    for name, value in VALUES.items():
        assert np.array_equal(read[name], value)
        assert read[name].dtype == value.dtype
    assert eighth.tolist() == [1, 1, 1]


def test_checkpoint_is_read_like_any_other(tmp_path):
    prefix = save(tmp_path, 20)
    assert checkpoints.latest_intact(tmp_path) == prefix
    assert sorted(kte.checkpoints.read(tmp_path)) == sorted([*VALUES, "global_step"])
    assert checkpoints.step_of(prefix) == 20
    for path in (prefix, prefix + ".index", tmp_path):
        assert checkpoints.resolve(path) == prefix
        assert kte.load_variable(path, "count") == 2**40
    assert checkpoints.read(prefix).keys() == {*VALUES, "global_step"}
    with pytest.raises(KeyError, match="has no variable 'dense/kernels'"):
        checkpoints.read(prefix, ["dense/kernels"])
    assert kte.load_checkpoint(tmp_path).get_tensor("mask").tolist() == [1, 0]


@pytest.mark.skipif(os.name == "nt", reason="Windows has other patterns.")
@pytest.mark.parametrize("folder", ["a[b]", "a\\b", "a*b?", "[!a]"])
def test_patterns_in_a_path_are_literal(tmp_path, folder):
    prefix = save(tmp_path / folder, 20)
    assert kte.load_variable(prefix, "count") == 2**40
    assert checkpoints.latest_intact(tmp_path / folder) == prefix


def test_each_format_replaces_the_other(tmp_path):
    prefix = checkpoints.save(tmp_path, 20, {"v": np.zeros(2)})
    assert save(tmp_path, 20, {"v": np.ones(2)}) == prefix
    assert sorted(os.listdir(tmp_path)) == [
        "checkpoint",
        "model.ckpt-20.data-00000-of-00001",
        "model.ckpt-20.index",
        "model.ckpt-20.meta",
    ]
    assert kte.load_variable(prefix, "v").tolist() == [1, 1]
    checkpoints.save(tmp_path, 20, {"v": np.zeros(2)})
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "model.ckpt-20.h5"]


def test_old_checkpoints_are_removed_with_all_files(tmp_path):
    for step in range(3):
        prefix = save(tmp_path, step, retention=checkpoints.Retention(2))
    assert checkpoints.latest(tmp_path) == prefix
    names = [n for n in os.listdir(tmp_path) if n != "checkpoint"]
    assert {name.split(".")[1] for name in names} == {"ckpt-1", "ckpt-2"}
    assert len(names) == 6


@pytest.mark.parametrize("end", [".index", ".data-00000-of-00001"])
@pytest.mark.parametrize("how", ["cut", "changed", "gone"])
def test_corrupt_checkpoint_is_skipped(tmp_path, caplog, end, how):
    older, newer = (save(tmp_path, step) for step in (10, 20))
    # Cached checks are about other files.
    file = tmp_path / (os.path.basename(newer) + end)
    content = file.read_bytes()
    file.unlink()
    if how == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif how == "changed":
        file.write_bytes(content.replace(content[9:12], b"???"))
    assert checkpoints.latest_intact(tmp_path) == older
    assert "model.ckpt-20" in caplog.text


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("end", some_slow(_ENDS, _ENDS[:2]))
def test_killed_save_is_ignored_and_later_removed(tmp_path, end):
    first = save(tmp_path, 10)
    before = set(os.listdir(tmp_path))
    child = subprocess.run(
        [sys.executable, "-c", _KILLED_WHILE_SAVING, str(tmp_path), end]
    )
    assert child.returncode == -signal.SIGKILL
    assert set(os.listdir(tmp_path)) > before
    assert checkpoints.latest_intact(tmp_path) == first
    save(tmp_path, 20)
    new = {f"model.ckpt-20{e}" for e in _ENDS}
    assert set(os.listdir(tmp_path)) == before | new


@pytest.mark.parametrize("times", [1, 2, 3, 4])
def test_failed_save_does_not_change_the_directory(tmp_path, monkeypatch, times):
    first = save(tmp_path, 10)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    replace, left = os.replace, iter(range(times - 1))

    def disk_full(*args):
        if next(left, None) is None:
            raise OSError(28, "No space left on device")
        replace(*args)

    monkeypatch.setattr(os, "replace", disk_full)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, 20)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert checkpoints.latest(tmp_path) == first


def test_unwritable_directory_is_named(tmp_path):
    (tmp_path / "nowhere").touch()
    saved = SaveFiles(str(tmp_path / "nowhere" / "model.ckpt-20"))
    with pytest.raises(OSError, match="nowhere"):
        tensorflow_format.write(saved, VALUES)


def test_values_that_tensorflow_cannot_write_are_an_error_of_one_line(tmp_path):
    saved = SaveFiles(str(tmp_path / "model.ckpt-20"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(OSError, match="ckpt-20' cannot .*File too large$"):
            tensorflow_format.write(saved, {"large": np.zeros(1 << 14)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_strings_are_an_error(tmp_path):
    with pytest.raises(TypeError, match="'name' must be an array of numbers"):
        save(tmp_path, 20, {"name": np.array(["a"])})


def test_checkpoint_is_written_to_a_url():
    url = "memory://bucket/bundles"
    prefix = save(url, 20)
    save(url, 30, retention=checkpoints.Retention(1))
    assert checkpoints.latest_intact(url) == prefix.replace("20", "30")
    assert kte.load_variable(url, "count") == 2**40
    assert not location.exists(prefix)
