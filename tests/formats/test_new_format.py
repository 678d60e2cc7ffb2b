"""Tests that a new format needs one file and one call of `register_format`."""

import os
import re

# Import Keras after this package, so that Keras runs on JAX.
import keras_tpu_estimator as kte  # isort: split

import keras
import npz_format
import numpy as np
import pytest
from helpers import linear, model_fn_of, repeated
from npz_format import NpzFormat
from sharded_saves import shard_values, write_shards

from keras_tpu_estimator.base.common.index_ranges import IndexRanges
from keras_tpu_estimator.checkpoints import Layout, SaveFiles
from keras_tpu_estimator.files import inspection
from keras_tpu_estimator.files.atomic.checksum import stamp, token_of
from keras_tpu_estimator.files.directory import layouts, location, save_files
from keras_tpu_estimator.files.formats import registry as formats
from keras_tpu_estimator.files.inspection import verify


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(layouts, "LAYOUTS", [*layouts.LAYOUTS])
    monkeypatch.setattr(formats, "_FORMATS", {**formats._FORMATS})
    monkeypatch.setattr(formats, "_LAYOUTS", {**formats._LAYOUTS})
    kte.checkpoints.register_format("npz", NpzFormat())


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
    tokens = {token_of(run / f"model.ckpt-{step}.npz-index") for step in (4, 6)}
    archives = {n.split(".")[-1] for n in names_in(run) if ".arrays-0." in n}
    assert archives == tokens


@pytest.mark.parametrize("other", ["hdf5", "tensorflow", "npz"])
@pytest.mark.parametrize("first", [True, False])
def test_formats_replace_each_other(tmp_path, other, first):
    order = ["npz", other] if first else [other, "npz"]
    for number, name in enumerate(order):
        prefix = kte.checkpoints.save(tmp_path, 3, {"a": [float(number)]})
        formats.write(SaveFiles(prefix), {"a": np.array([float(number)])}, name)
    assert formats.format_at(prefix) is formats.named(order[-1])
    assert formats.is_intact(prefix)
    assert kte.load_variable(prefix, "a") == [1.0]
    save_files.remove(prefix)
    assert not names_in(tmp_path)


def test_files_of_a_killed_save_are_stale(tmp_path):
    prefix = str(tmp_path / "model.ckpt-3")
    complete = SaveFiles(prefix)
    formats.write(complete, {"a": np.zeros(1)}, "npz")
    killed = SaveFiles(prefix)
    with open(killed.named("arrays-0"), "wb") as file:
        file.write(b"half" + stamp(killed.token))
    save_files.sweep(str(tmp_path))
    assert names_in(tmp_path) == {
        "model.ckpt-3.npz-index",
        os.path.basename(complete.named("arrays-0")),
    }


def corrupt(prefix, number):
    with open(SaveFiles.at(prefix).named(f"arrays-{number}"), "r+b") as file:
        file.seek(200)
        file.write(b"\xff")


def test_corrupt_file_is_found(tmp_path):
    prefix = str(tmp_path / "model.ckpt-3")
    formats.write(SaveFiles(prefix), {"a": np.zeros(99)}, "npz")
    corrupt(prefix, 0)
    assert not formats.is_intact(prefix)


WIDE = 512
WIDE_BATCHES = repeated(
    *np.random.default_rng(0).normal(size=(2, 16, WIDE)).astype("float32")
)


def wide_estimator(model_dir, use_tpu, **config):
    """An estimator whose kernel is sharded over eight devices if it has them."""
    return kte.TPUEstimator(
        model_fn_of(lambda features, _: keras.layers.Dense(WIDE)(features)),
        train_batch_size=8,
        use_tpu=use_tpu,
        config=kte.RunConfig(
            model_dir=model_dir, tf_random_seed=1, fsdp=use_tpu, **config
        ),
    )


def values_of(directory):
    return kte.checkpoints.read(directory)


def test_shards_are_saved_restored_inspected_and_deleted(tmp_path, capsys):
    run, expected = str(tmp_path / "run"), str(tmp_path / "expected")
    for steps in (2, 4, 6):
        sharded = wide_estimator(
            run, True, checkpoint_format="npz", keep_checkpoint_max=2
        )
        sharded.train(WIDE_BATCHES, max_steps=steps)
        wide_estimator(expected, True).train(WIDE_BATCHES, max_steps=steps)
    index = npz_format.index_at(f"{run}/model.ckpt-6")
    assert {len(each["shards"]) for each in index.values()} == {1, 8}
    assert names_in(run) == {
        os.path.basename(path)
        for step in (4, 6)
        for prefix in [f"{run}/model.ckpt-{step}"]
        for path in (
            npz_format.LAYOUT.main(prefix),
            *npz_format.archives_at(prefix).values(),
        )
    }

    assert inspection.main("info", [run]) == 0
    shown = capsys.readouterr().out
    assert re.findall(r"(?m)^model.ckpt-(\d+) ", shown) == ["6", "4"]
    assert "dense/kernel" in shown
    assert inspection.main("verify", [run]) == 0

    for path, use_tpu in ((run, False), (expected, True)):
        wide_estimator(path, use_tpu).train(WIDE_BATCHES, max_steps=8)
    found, wanted = values_of(run), values_of(expected)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)

    corrupt(f"{run}/model.ckpt-6", 0)
    capsys.readouterr()
    assert inspection.main("verify", [run]) == 1
    assert f"CORRUPT  {run}/model.ckpt-6" in capsys.readouterr().out


def test_processes_write_separate_archives(tmp_path):
    table = np.arange(8.0).reshape(4, 2)
    halves = {IndexRanges((0, 0), (2, 2)): 0, IndexRanges((2, 0), (4, 2)): 1}
    files = SaveFiles(str(tmp_path / "model.ckpt-3"))
    values = {"table": shard_values(table, halves)}
    variables, receipts = write_shards(files, values, name="npz")
    formats.write(files, {**variables, "bias": np.ones(2)}, "npz", receipts)
    assert len(npz_format.archives_at(files.prefix)) == 3
    read = kte.checkpoints.read(files.prefix)
    np.testing.assert_array_equal(read["table"], table)
    part = kte.load_checkpoint(files.prefix).get_part("table", np.s_[1:3, 0:1])
    np.testing.assert_array_equal(part, table[1:3, 0:1])
    assert verify(files.prefix).is_intact
    save_files.remove(files.prefix)
    assert not names_in(tmp_path)


def test_messages_name_the_format(tmp_path):
    with pytest.raises(ValueError, match=r"model.ckpt-3.npz-index'"):
        location.resolve(tmp_path / "model.ckpt-3")
    with pytest.raises(ValueError, match=r"'npz'\]"):
        formats.named("zip")


class Renamed(NpzFormat):
    layout = Layout(".zip")


@pytest.mark.parametrize(
    ("name", "new", "error", "message"),
    [
        ("npz", Renamed(), ValueError, r"'npz' and '.zip', of which \['npz'\] are"),
        ("zip", NpzFormat(), ValueError, r"of which \['.npz-index'\] are in use"),
        ("zip", NpzFormat, TypeError, "Pass an object, not a class"),
    ],
)
def test_names_and_endings_are_registered_once(name, new, error, message):
    with pytest.raises(error, match=message):
        kte.checkpoints.register_format(name, new)
    assert [*formats.names()].count("npz") == 1
