"""Tests that a new format needs one file and one call of `register`."""

import os
import zipfile

import numpy as np
import pytest
from helpers import linear, model_fn_of, repeated

import keras_tpu_estimator as kte
from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.files.atomic.checksum import stamp, token_of
from keras_tpu_estimator.files.directory import layouts, location, save_files
from keras_tpu_estimator.files.directory.layouts import Layout
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.formats import checkpoint_format as formats
from keras_tpu_estimator.files.formats.checkpoint_format import CheckpointFormat
from keras_tpu_estimator.files.formats.reader import ArraysReader, Content

ZIP = Layout(".npz", saved={"values": "values"})


def write(saved, variables):
    """Writes arrays into one file, and their names into the main file."""
    with commit.replacing(saved.named("values")) as path, open(path, "wb") as file:
        np.savez(file, **{n.replace("/", "|"): v for n, v in variables.items()})
        file.write(stamp(saved.token))
    with commit.replacing(ZIP.main(saved.prefix)) as path, open(path, "wb") as file:
        file.write("\n".join(variables).encode() + stamp(saved.token))


def values_of(prefix):
    return SaveFiles.at(prefix).named("values")


def read(prefix):
    with np.load(values_of(prefix)) as arrays:
        return ArraysReader({n.replace("|", "/"): arrays[n] for n in arrays})


def contents(prefix):
    file = values_of(prefix)

    def is_right():
        try:
            return zipfile.ZipFile(file).testzip() is None
        except zipfile.BadZipFile:
            return False

    return [Content((file,), is_right)]


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(layouts, "LAYOUTS", [*layouts.LAYOUTS])
    monkeypatch.setattr(formats, "_FORMATS", {**formats._FORMATS})
    formats.register("npz", CheckpointFormat(ZIP, read, write, contents))


def estimator_in(model_dir, **config):
    return kte.TPUEstimator(
        model_fn_of(linear),
        train_batch_size=8,
        use_tpu=False,
        config=kte.RunConfig(model_dir=model_dir, checkpoint_format="npz", **config),
    )


BATCHES = repeated(*np.random.default_rng(0).normal(size=(2, 16, 1)).astype("float32"))


def names_in(directory):
    return {n for n in os.listdir(directory) if n.startswith("model")}


def test_new_format_trains_resumes_and_deletes_old_checkpoints(tmp_path):
    whole = estimator_in(tmp_path / "whole")
    whole.train(BATCHES, steps=6)
    run = tmp_path / "run"
    for _ in range(3):
        estimator_in(run, keep_checkpoint_max=2).train(BATCHES, steps=2)
    last = estimator_in(run)
    assert last.latest_checkpoint() == str(run / "model.ckpt-6")
    for name in whole.get_variable_names():
        want, got = whole.get_variable_value(name), last.get_variable_value(name)
        np.testing.assert_array_equal(got, want)
    tokens = {token_of(run / f"model.ckpt-{step}.npz") for step in (4, 6)}
    values = {n.split(".")[-1] for n in names_in(run) if ".values." in n}
    assert values == tokens


@pytest.mark.parametrize("other", ["hdf5", "tensorflow", "npz"])
@pytest.mark.parametrize("first", [True, False])
def test_formats_replace_each_other(tmp_path, other, first):
    order = ["npz", other] if first else [other, "npz"]
    for number, name in enumerate(order):
        prefix = kte.checkpoints.save(tmp_path, 3, {"a": [float(number)]})
        formats.write(SaveFiles(prefix), {"a": np.array([float(number)])}, name)
    assert formats.format_of(prefix) is formats.named(order[-1])
    assert formats.is_intact(prefix)
    assert kte.load_variable(prefix, "a") == [1.0]
    save_files.remove(prefix)
    assert not names_in(tmp_path)


def test_files_of_a_killed_save_are_stale(tmp_path):
    prefix = str(tmp_path / "model.ckpt-3")
    kept = SaveFiles(prefix)
    formats.write(kept, {"a": np.zeros(1)}, "npz")
    killed = SaveFiles(prefix)
    with open(killed.named("values"), "wb") as file:
        file.write(b"half" + stamp(killed.token))
    save_files.sweep(str(tmp_path))
    assert names_in(tmp_path) == {
        "model.ckpt-3.npz",
        os.path.basename(kept.named("values")),
    }


def test_corrupt_file_is_found(tmp_path):
    prefix = str(tmp_path / "model.ckpt-3")
    formats.write(SaveFiles(prefix), {"a": np.zeros(99)}, "npz")
    path = values_of(prefix)
    with open(path, "r+b") as file:
        file.seek(200)
        file.write(b"\xff")
    assert not formats.is_intact(prefix)


def test_messages_name_the_format(tmp_path):
    with pytest.raises(ValueError, match=r"model.ckpt-3.npz'"):
        location.resolve(tmp_path / "model.ckpt-3")
    with pytest.raises(ValueError, match=r"'npz'\]"):
        formats.named("zip")


def test_names_and_endings_are_registered_once():
    with pytest.raises(ValueError, match=r"'npz' and '.zip', of which \['npz'\] are"):
        formats.register("npz", CheckpointFormat(Layout(".zip"), read, write, contents))
    with pytest.raises(ValueError, match=r"'zip' and '.npz', of which \['.npz'\]"):
        formats.register("zip", CheckpointFormat(ZIP, read, write, contents))
    assert [*formats.names()].count("npz") == 1
