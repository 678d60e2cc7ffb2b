"""Tests Orbax checkpoints."""

import asyncio
import dataclasses
import errno
import json
import os
import pathlib
import threading

import jax
import keras
import ml_dtypes
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

import keras_tpu_estimator as kte
from keras_tpu_estimator import checkpoints, experimental
from keras_tpu_estimator.__main__ import main
from keras_tpu_estimator.checkpoints import SaveFiles, ShardValues
from keras_tpu_estimator.files.directory import save_files
from keras_tpu_estimator.files.formats.orbax import writer as orbax_writer
from tests.torture import memory, states
from tests.torture.saves import expect_no_stale_files

ocp = pytest.importorskip(
    "orbax.checkpoint", reason="orbax-checkpoint cannot be installed here"
)
X, Y = regression_data(32, size=8)
VALUES = {
    "dense/kernel": np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3),
    # A variable, and another below its name, as in TF1 scripts.
    "dense": np.array([True, False]),
    "count": np.int32(7),
}
FORMATS = ("hdf5", "tensorflow", "orbax")
ORBAX = {"checkpoint_format": "orbax"}
SHARDED = {**ORBAX, "shard_optimizer": True}


def adam():
    return keras.optimizers.Adam(0.01)


def wide(features, is_training):
    x = keras.layers.Dense(16, name="wide")(features)
    return keras.layers.Dense(1, name="out")(x)


def trained(directory, steps, config, **settings):
    made = estimator_of(
        model_fn_of(wide, adam),
        directory,
        use_tpu=True,
        batch=16,
        config=config,
        **settings,
    )
    return made.train(repeated(X, Y), max_steps=steps)


def save(directory, step=20, values=VALUES, name="orbax", **more):
    return checkpoints.save(directory, step, values, format_name=name, **more)


def folder_of(prefix):
    return pathlib.Path(SaveFiles.at(str(prefix)).named("orbax"))


def assert_equal(values, expected):
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        assert values[name].dtype == value.dtype
        np.testing.assert_array_equal(values[name], value)


def test_saved_values_are_read(tmp_path, caplog):
    prefix = save(tmp_path)
    assert not caplog.records
    expected = {**VALUES, "global_step": np.array(20)}
    assert_equal(checkpoints.read(tmp_path), expected)
    assert sorted(kte.checkpoints.read(prefix)) == sorted(expected)
    assert checkpoints.step_of(prefix + ".orbax") == 20
    reader = kte.load_checkpoint(tmp_path)
    part = reader.get_part("dense/kernel", np.s_[1:2, 1:])
    np.testing.assert_array_equal(part, [[4, 5]])


@pytest.mark.parametrize("checkpointer", ["Standard", "PyTree"])
def test_plain_orbax_reads_our_checkpoint(tmp_path, checkpointer):
    folder = folder_of(save(tmp_path))
    with getattr(ocp, f"{checkpointer}Checkpointer")() as plain:
        restored = plain.restore(folder)
    expected = {**VALUES, "global_step": np.array(20)}
    assert restored.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(restored[name], value)


@pytest.mark.parametrize("before", FORMATS)
@pytest.mark.parametrize("after", FORMATS)
def test_save_replaces_another_save(tmp_path, before, after):
    save(tmp_path, name=before)
    save(tmp_path, values={"other": np.ones(2)}, name=after)
    assert sorted(kte.checkpoints.read(tmp_path)) == ["global_step", "other"]
    expect_no_stale_files(str(tmp_path), "another format")


def test_old_checkpoints_are_removed_completely(tmp_path):
    keep = checkpoints.Retention(1)
    for name in ("0f0f0f0f", "0d0d0d0d"):
        (tmp_path / f"model.ckpt-1.orbax.{name}").mkdir()
    # The process is killed before the file is written.
    (tmp_path / "model.ckpt-1.orbax.0d0d0d0d" / "kte_save").touch()
    mine = tmp_path / "model.ckpt-1.orbax.0e0e0e0e"
    mine.mkdir()
    (mine / "notes").touch()
    for step in (10, 20):
        save(tmp_path, step, retention=keep)
    names = {path.name for path in tmp_path.iterdir()}
    tree = folder_of(tmp_path / "model.ckpt-20").name
    assert names == {"checkpoint", "model.ckpt-20.orbax", tree, mine.name}


def test_files_of_a_killed_removal_are_removed(tmp_path):
    folder = folder_of(save(tmp_path))
    (tmp_path / "model.ckpt-20.orbax").unlink()
    (folder / "_METADATA").unlink()
    save_files.sweep(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint"}


@pytest.mark.parametrize("where", [".", "d"])
def test_files_that_are_still_written_are_removed_later(tmp_path, monkeypatch, where):
    saved = SaveFiles(str(tmp_path / "model.ckpt-20"))
    saved.make_folder("orbax")
    folder = pathlib.Path(saved.named("orbax"), where)
    folder.mkdir(exist_ok=True)
    (folder / "one").touch()
    remove = os.remove

    def removed(path):
        remove(path)
        (folder / "another").touch()

    with monkeypatch.context() as patched:
        patched.setattr(os, "remove", removed)
        save_files.sweep(str(tmp_path))
    assert (folder / "another").exists()
    save_files.sweep(str(tmp_path))
    assert os.listdir(tmp_path) == []


def changed(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_any_corrupt_file_is_found(tmp_path):
    older = save(tmp_path, 10)
    prefix = save(tmp_path, 20)
    files = [p for p in folder_of(prefix).rglob("*") if p.is_file()]
    assert len(files) > 5
    for path in [*files, pathlib.Path(prefix + ".orbax")]:
        content = path.read_bytes()
        changed(path)
        assert checkpoints.latest_intact(tmp_path) == older
        with pytest.raises(ValueError, match="truncated or corrupt"):
            kte.load_variable(prefix, "count")
        path.write_bytes(content)
    files[0].unlink()
    assert checkpoints.latest_intact(tmp_path) == older


def test_commands(tmp_path, capsys):
    prefix = save(tmp_path)
    size = sum(
        path.stat().st_size
        for path in tmp_path.rglob("*")
        if path.is_file() and path.name != "checkpoint"
    )
    assert main(["info", str(tmp_path)]) == 0
    assert f"{size / 1000:.4g} kB" in capsys.readouterr().out
    assert main(["verify", str(tmp_path)]) == 0
    changed(next(folder_of(prefix).glob("d/*")))
    assert main(["verify", str(tmp_path)]) == 1
    assert "truncated or corrupt" in capsys.readouterr().out


def test_values_that_orbax_cannot_save_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"without elements.*\['none'\]"):
        save(tmp_path, values={"none": np.zeros((0, 3))})
    with pytest.raises(TypeError, match="'text' must be an array"):
        save(tmp_path, values={"text": np.array("words")})
    assert os.listdir(tmp_path) == []
    with pytest.raises(ValueError, match="Received: 'memory://bucket/"):
        save("memory://bucket/run")


def test_stores_are_refused_before_training():
    made = estimator_of(model_fn_of(linear), "memory://bucket/orbax", config=ORBAX)
    with pytest.raises(ValueError, match="must have a `model_dir` on this"):
        made.train(batches_of(X, Y))


# On Windows the backslash separates folders.
@pytest.mark.parametrize("name", ["run[1]", *["a\\b"] * (os.sep == "/")])
def test_folders_that_orbax_cannot_read_are_refused_before_training(tmp_path, name):
    made = estimator_of(model_fn_of(linear), tmp_path / name, config=ORBAX)
    with pytest.raises(ValueError, match=r"must have a `model_dir` without \[...\]"):
        made.train(batches_of(X, Y))


@pytest.mark.parametrize("config", [ORBAX, SHARDED], ids=["whole", "sharded"])
def test_training_continues(tmp_path, config):
    for steps in (4, 8):
        trained(tmp_path / "trees", steps, config)
        trained(tmp_path / "files", steps, {})
    values = checkpoints.read(tmp_path / "trees")
    expected = checkpoints.read(tmp_path / "files")
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        assert values[name].dtype == value.dtype
        np.testing.assert_allclose(values[name], value, rtol=1e-5, atol=1e-6)
    folder = folder_of(tmp_path / "trees" / "model.ckpt-8")
    with ocp.StandardCheckpointer() as plain:
        abstract = {n: np.asarray(v) for n, v in expected.items()}
        restored = plain.restore(folder, abstract)
    for name, value in values.items():
        np.testing.assert_array_equal(restored[name], value)
    expect_no_stale_files(str(tmp_path / "trees"), "a training")


class Disk(threading.Event):
    """An event that Orbax's writes wait for, or a disk that is full."""

    is_full = False


@pytest.fixture
def disk(monkeypatch):
    slow, run = Disk(), threading.Thread.run

    def written(thread):
        if thread.name == "array_type_handler":
            assert slow.wait(60)
        run(thread)
        if thread.name == "array_type_handler" and slow.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(threading.Thread, "run", written)
    return slow


class AfterRuns(keras.callbacks.Callback):
    def __init__(self, runs, act):
        super().__init__()
        self._left, self._act = runs, act

    def on_train_batch_end(self, batch, logs=None):
        self._left -= 1
        if not self._left:
            self._act()


@pytest.mark.parametrize("is_a_notebook", [False, True])
def test_shards_are_written_while_training_continues(tmp_path, disk, is_a_notebook):
    disk.set()
    slow_for_a_while = [AfterRuns(1, disk.clear), AfterRuns(3, disk.set)]

    def train():
        made = estimator_of(
            model_fn_of(wide, adam),
            tmp_path / "late",
            use_tpu=True,
            iterations=2,
            config={**SHARDED, "save_checkpoints_steps": 4},
        )
        made.train(repeated(X, Y), max_steps=8, hooks=slow_for_a_while)

    async def in_a_loop():
        train()

    if is_a_notebook:
        asyncio.run(in_a_loop())
    else:
        train()
    trained(tmp_path / "files", 4, {"shard_optimizer": True})
    assert_equal(
        checkpoints.read(tmp_path / "late" / "model.ckpt-4"),
        checkpoints.read(tmp_path / "files"),
    )


def test_full_disk_in_the_background_is_an_error(tmp_path, disk):
    disk.set()
    trained(tmp_path, 4, SHARDED)
    config = {**SHARDED, "save_checkpoints_steps": 4}
    with pytest.raises(OSError, match="No space left on device"):
        disk.is_full = True
        trained(tmp_path, 16, config)
    assert checkpoints.step_of(tmp_path) == 4
    expect_no_stale_files(str(tmp_path), "a full disk")
    disk.is_full = False
    trained(tmp_path, 16, config)
    assert checkpoints.step_of(tmp_path) == 16


def test_formats_follow_each_other(tmp_path):
    for steps, config in enumerate(
        (SHARDED, {"shard_optimizer": True}, ORBAX, SHARDED, {}), start=1
    ):
        trained(tmp_path / "mixed", 2 * steps, config)
    trained(tmp_path / "one", 10, {})
    expected = checkpoints.read(tmp_path / "one")
    for name, value in checkpoints.read(tmp_path / "mixed").items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)


def test_padding_rows_of_devices_are_not_read(tmp_path):
    spec = experimental.EmbeddingConfigSpec(
        optimization_parameters=experimental.AdagradParameters(0.1),
        table_to_config_dict={"words": experimental.TableConfig(13, 4)},
        feature_to_config_dict={"ids": experimental.FeatureConfig("words")},
    )

    def network(features, is_training):
        return keras.layers.Dense(1)(features["ids"])

    def input_fn(params):
        ids = np.arange(params["batch_size"], dtype="int32") % 13
        while True:
            yield {"ids": ids}, ids[:, None].astype("float32")

    def train(directory, steps, config):
        return estimator_of(
            model_fn_of(network, adam),
            directory,
            use_tpu=True,
            config=config,
            embedding_config_spec=spec,
        ).train(input_fn, max_steps=steps)

    for steps in (2, 4):
        train(tmp_path / "trees", steps, ORBAX)
        train(tmp_path / "files", steps, {})
    values = checkpoints.read(tmp_path / "trees")
    expected = checkpoints.read(tmp_path / "files")
    assert sum(value.shape == (13, 4) for value in values.values()) == 2
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value)


def test_nonfinite_shards_are_not_saved(tmp_path):
    class Spoiling(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            for variable in self.model.trainable_variables:
                variable.assign(variable * np.nan)

    trained(tmp_path, 4, SHARDED)
    made = estimator_of(model_fn_of(wide, adam), tmp_path, use_tpu=True, config=SHARDED)
    error = kte.hooks.NanLossDuringTrainingError
    with pytest.raises(error):
        made.train(repeated(X, Y), max_steps=8, hooks=[Spoiling()])
    assert checkpoints.step_of(tmp_path) == 4
    expect_no_stale_files(str(tmp_path), "NaN")


def test_full_disk_is_an_os_error(tmp_path, monkeypatch):
    save(tmp_path, 10)

    def full(*_, **__):
        raise ValueError("RESOURCE_EXHAUSTED: No space left on device")

    monkeypatch.setattr(ocp.PyTreeCheckpointHandler, "async_save", full)
    with pytest.raises(OSError, match="No space left on device"):
        save(tmp_path, 20)
    assert checkpoints.step_of(tmp_path) == 10
    expect_no_stale_files(str(tmp_path), "a full disk")


def test_main_file_is_written_last(tmp_path, monkeypatch):
    synced = []
    fsync, replace = os.fsync, os.replace

    def noted(file):
        synced.append(os.readlink(f"/proc/self/fd/{file}"))
        fsync(file)

    def replaced(source, target):
        if target.endswith(".orbax"):
            (tree,) = tmp_path.glob("*.orbax.????????")
            assert {*map(str, tree.rglob("*")), str(tree)} <= {*synced}
            synced.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", replaced)
    main_file = save(tmp_path) + ".orbax"
    assert main_file in synced


def test_arrays_do_not_keep_fetched_copies(tmp_path):
    growths = []
    # The first save also makes the threads and buffers that all saves share.
    for step in (1, 2, 3):
        values = states.state(64 << 20, variables=2, is_away=True)
        saved = SaveFiles(str(tmp_path / f"model.ckpt-{step}"))
        orbax_writer.make_folder(saved)
        shards = {name: ShardValues.from_array(value) for name, value in values.items()}
        checked = []
        first = min(shards)
        shards[first] = dataclasses.replace(shards[first], check=checked.append)
        before = memory.now()
        wait = orbax_writer.begin_arrays(saved, step, shards)
        wait()
        assert sum(shard.size for shard in checked) == values[first].size
        checked.clear()
        del wait
        growths.append(memory.now() - before)
    assert min(growths) < 32 << 20
    orbax_writer.finish(saved, {})
    for name, value in values.items():
        np.testing.assert_array_equal(kte.load_variable(saved.prefix, name), value)


def test_training_may_donate_fetched_arrays(tmp_path):
    values = states.state(1 << 20, variables=2, is_away=True)
    expected = {name: np.array(value) for name, value in values.items()}
    saved = SaveFiles(str(tmp_path / "model.ckpt-3"))
    orbax_writer.make_folder(saved)
    shards = {name: ShardValues.from_array(value) for name, value in values.items()}
    wait = orbax_writer.begin_arrays(saved, 3, shards)
    for value in values.values():
        value.delete()
    wait()
    orbax_writer.finish(saved, {})
    for name, value in expected.items():
        np.testing.assert_array_equal(kte.load_variable(saved.prefix, name), value)


def test_best_checkpoint_stays(tmp_path):
    config = {**ORBAX, "keep_checkpoint_max": 1}
    config["keep_best"] = checkpoints.KeepBest()
    made = trained(tmp_path, 4, config)
    made.evaluate(batches_of(X, Y))
    trained(tmp_path, 8, config)
    trained(tmp_path, 12, config)
    assert checkpoints.best(tmp_path).endswith("model.ckpt-4")
    steps = {path.stem for path in tmp_path.glob("*.orbax")}
    assert steps == {"model.ckpt-4", "model.ckpt-12"}


def test_main_file_describes_the_folder(tmp_path):
    prefix = save(tmp_path)
    text = pathlib.Path(prefix + ".orbax").read_bytes().decode(errors="ignore")
    said, _ = json.JSONDecoder().raw_decode(text)
    files = {
        str(path.relative_to(folder_of(prefix)))
        for path in folder_of(prefix).rglob("*")
        if path.is_file()
    }
    assert said["files"].keys() == files
    assert jax.process_count() == 1


def test_old_orbax_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(ocp, "PyTreeCheckpointHandler", lambda: None)
    with pytest.raises(ImportError, match=r"too old .*0\.12.*--upgrade"):
        checkpoints.save(tmp_path, 1, {"v": [1.0]}, format_name="orbax")
    assert not [*tmp_path.iterdir()]
