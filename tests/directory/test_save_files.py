"""Tests which files belong to a checkpoint and which are removed."""

import os
import shutil
import zipfile

import numpy as np
import pytest
import tensorflow.compat.v1 as tf  # noqa: TID253 - reads the written files
from helpers import estimator_of, linear, model_fn_of, regression_data, repeated
from sharded_saves import shard_values, write_shards

import keras_tpu_estimator as kte
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.base.common.index_ranges import IndexRanges
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.checkpoints import SaveFiles
from keras_tpu_estimator.engine.inputs.position import (
    Position,
    StepRecipe,
    read_position,
    write_position,
)
from keras_tpu_estimator.files.atomic.checksum import stamp
from keras_tpu_estimator.files.checkpoints.saving import save_into
from keras_tpu_estimator.files.directory import (
    layouts,
    location,
    save_files,
    state_file,
)
from keras_tpu_estimator.files.directory.layouts import SaveName
from keras_tpu_estimator.files.directory.save_files import ResumeFiles
from keras_tpu_estimator.files.formats import registry as formats
from keras_tpu_estimator.runs.position_saver import pack_states, write_states

X, Y = regression_data()
TOKEN = "0f0f0f0f"
# Names that saves use or have used, and similar names.
USERS = (
    "train.tfrecord.shard-00000-of-00002",
    "mnist.input.zip",
    "photos.input-1-of-4.zip",
    "photo-5.input.zip",
    "model.ckpt-5.input.zip",
    f"model.ckpt-5.input.{TOKEN}.zip",
    f"model.ckpt-10.input.{TOKEN}.zip",
    f"model.ckpt-5.callbacks.{TOKEN}.zip",
    f"model.ckpt-10.callbacks.{TOKEN}.zip",
    "model.ckpt-5.shard-0-of-2",
    f"model.ckpt-5.shard-0-of-2.{TOKEN}",
    f"model.ckpt-10.shard-0-of-2.{TOKEN}",
    "model.ckpt-5.data-00000-of-00001",
    "model.ckpt-10.data-00000-of-00001",
    "model.ckpt-5.meta",
    f"model.ckpt-10.unlisted.{TOKEN}",
    "notes.kte-partial",
    "notes.partial",
    "model.ckpt-99.h5",
    ".hidden",
)


def write_table(saved, value=1.0):
    """Writes a variable in two shards on one host."""
    parts = {IndexRanges((0,), (2,)): 0, IndexRanges((2,), (4,)): 0}
    table = shard_values(np.full(4, value), parts)
    return write_shards(saved, {"table": table}, processes=1)


def save(directory, step=10, value=1.0, way="parts", position=True, best=5):
    """Saves as `train` does; returns the files."""
    os.makedirs(directory, exist_ok=True)
    saved = SaveFiles(os.path.join(directory, f"model.ckpt-{step}"))
    values, receipts = {"table": np.full(4, value)}, ()
    if way == "parts":
        values, receipts = write_table(saved, value)
    if position:
        steps = int(value)
        write_position(saved, Position(steps, StepRecipe(8, 1, 8)))
    save_into(
        saved,
        step,
        values,
        retention=checkpoints.Retention(best),
        format_name=way if way in ("tensorflow", "orbax") else "hdf5",
        receipts=receipts,
    )
    return saved


def save_by_tensorflow(directory):
    """Writes a checkpoint with TensorFlow; returns its prefix."""
    with tf.Graph().as_default(), tf.Session() as session:
        for name in ("one", "two"):
            tf.get_variable(name, (2,), initializer=tf.zeros_initializer())
        session.run(tf.global_variables_initializer())
        saver = tf.train.Saver(sharded=True)
        return saver.save(session, str(directory / "model.ckpt"), 10)


def content(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def users(tmp_path):
    """Files of the user, including an ordinary zip file."""
    for name in USERS:
        (tmp_path / name).write_text(name)
    with zipfile.ZipFile(tmp_path / "photo-5.input.zip", "w") as file:
        file.writestr("position.json", "{}")
    return {name: (tmp_path / name).read_bytes() for name in USERS}


@pytest.mark.parametrize("way", ["whole", "parts", "tensorflow"])
def test_saves_keep_the_users_files(tmp_path, users, way):
    for step in (10, 10, 20, 30):
        save(tmp_path, step, way=way, best=1)
    save_files.sweep(str(tmp_path))
    there = content(tmp_path)
    if way == "tensorflow":
        # TensorFlow's name for the checkpoint file.
        name = "model.ckpt-10.data-00000-of-00001"
        del users[name]
        there.pop(name, None)
    assert users.items() <= there.items()


@pytest.mark.parametrize("shares", [False, True])
def test_training_keeps_the_users_files(tmp_path, users, shares):
    # Training would refuse to start with this file.
    (tmp_path / "model.ckpt-99.h5").unlink()
    del users["model.ckpt-99.h5"]
    estimator = estimator_of(
        model_fn_of(linear),
        tmp_path,
        iterations=1,
        use_tpu=shares,
        config={
            "save_checkpoints_steps": 1,
            "keep_checkpoint_max": 1,
            "shard_optimizer": shares,
        },
    )
    for _ in range(2):
        estimator.train(repeated(X, Y), steps=2)
    assert users.items() <= content(tmp_path).items()


def full_disk(monkeypatch):
    """Makes writing of main files fail."""
    replace = os.replace

    def full(source, target):
        if target.endswith((".h5", ".index")):
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)


def remains(saved):
    """Makes the files of a killed save: shards, an iterator state, data, meta."""
    write_table(saved)
    write_position(saved, Position(1, StepRecipe(8, 1, 8)))
    other = SaveFiles(saved.prefix + "-1", saved.token)
    formats.write(other, {"a": np.zeros(2), "b": np.ones(2)}, "tensorflow")
    for end in (".data-00000-of-00001", ".meta"):
        os.replace(other.prefix + end, saved.prefix + end)
    os.remove(other.prefix + ".index")


@pytest.mark.parametrize("way", ["whole", "parts", "tensorflow", "orbax"])
def test_retention_removes_links_and_not_their_targets(tmp_path, way):
    """Users may move old checkpoints to another disk, and leave links."""
    run, disk = tmp_path / "run", tmp_path / "disk"
    disk.mkdir()
    save(run, 10, way=way)
    for path in run.glob("model.ckpt-10.*"):
        shutil.move(path, disk / path.name)
        path.symlink_to(disk / path.name)
    before = {p: p.is_dir() or p.read_bytes() for p in disk.rglob("*")}
    assert checkpoints.read(str(run / "model.ckpt-10"))["table"][0] == 1.0
    for step in (20, 30, 40):
        save(run, step, way=way, best=2)
    save_files.sweep(str(run))
    assert not [*run.glob("model.ckpt-10.*")]
    after = {p: p.is_dir() or p.read_bytes() for p in disk.rglob("*")}
    assert after == before


def test_link_in_a_folder_of_orbax_is_not_followed(tmp_path):
    run, disk = tmp_path / "run", tmp_path / "disk"
    disk.mkdir()
    saved = save(run, 10, way="orbax")
    data = os.path.join(saved.named("orbax"), "d")
    shutil.move(data, disk / "d")
    os.symlink(disk / "d", data)
    before = {p: p.is_dir() or p.read_bytes() for p in disk.rglob("*")}
    for step in (20, 30):
        save(run, step, way="orbax", best=1)
    assert not os.path.lexists(saved.named("orbax"))
    after = {p: p.is_dir() or p.read_bytes() for p in disk.rglob("*")}
    assert after == before


def test_files_of_a_killed_save_are_removed(tmp_path):
    save(tmp_path, 10)
    before = content(tmp_path)
    remains(SaveFiles(str(tmp_path / "model.ckpt-20")))
    assert len(content(tmp_path)) == len(before) + 4
    save_files.sweep(str(tmp_path))
    assert content(tmp_path) == before


@pytest.mark.parametrize("way", ["whole", "parts", "tensorflow", "orbax"])
def test_save_killed_at_any_moment_keeps_listed_files(tmp_path, monkeypatch, way):
    """A complete checkpoint that no list names would stay forever."""
    run, seen, unlisted = tmp_path / "run", [], []

    def watched(function):
        def call(path, *args, **kwargs):
            if os.fspath(path).startswith(str(run)):
                seen.append(shutil.copytree(run, tmp_path / str(len(seen))))
            return function(path, *args, **kwargs)

        return call

    def are_listed(directory):
        there = {os.path.basename(p) for p in complete_in(directory)}
        listed = {os.path.basename(p) for p in location.listed(str(directory))}
        return there == listed

    for step in (10, 20):
        save(run, step, way=way, best=2)
    with monkeypatch.context() as patch:
        for name in ("replace", "remove"):
            patch.setattr(os, name, watched(getattr(os, name)))
        for step in (30, 30):
            save(run, step, way=way, best=2)
    for directory in seen:
        unlisted.append(not are_listed(directory))
        save_files.sweep(str(directory))
        assert are_listed(directory)
        assert checkpoints.latest_intact(str(directory))
        save(directory, 40, way=way, best=2)
        assert are_listed(directory)
        assert not [*directory.glob("*.unlisted.*")]
    assert any(unlisted)
    assert not [*run.glob("*.unlisted.*")]


def complete_in(directory):
    """The prefixes of complete checkpoints."""
    ends = (".h5", ".index", ".orbax")
    return {
        str(path)[: -len(path.suffix)]
        for path in directory.iterdir()
        if path.suffix in ends and path.is_file()
    }


def test_checkpoints_that_the_user_has_unlisted_stay(tmp_path):
    for step in (10, 20, 30):
        save(tmp_path, step)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-10"')
    save_files.sweep(str(tmp_path))
    assert len(complete_in(tmp_path)) == 3
    (tmp_path / "checkpoint").unlink()
    save_files.sweep(str(tmp_path))
    assert len(complete_in(tmp_path)) == 3


def test_unwritable_list_changes_nothing(tmp_path, monkeypatch):
    for step in (10, 20):
        save(tmp_path, step, best=2)
    before = content(tmp_path)

    def full(directory, state):
        assert (tmp_path / "model.ckpt-30.h5").exists()
        assert len([*tmp_path.glob("*.unlisted.*")]) == 2
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(state_file, "store", full)
        with pytest.raises(OSError, match="No space left"):
            save(tmp_path, 30, best=2)
    assert content(tmp_path) == before


def test_list_may_have_absolute_paths(tmp_path, monkeypatch):
    saved = save(tmp_path)
    saved.mark_unlisted()
    (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{saved.prefix}"')
    monkeypatch.chdir(tmp_path.parent)
    save_files.sweep(tmp_path.name)
    assert location.exists(saved.prefix)
    assert not [*tmp_path.glob("*.unlisted.*")]


@pytest.mark.parametrize(
    "save_by", [save_by_tensorflow, lambda directory: save(directory).prefix]
)
def test_markers_of_other_programs_remove_nothing(tmp_path, save_by):
    prefix = save_by(tmp_path)
    (tmp_path / "checkpoint").unlink()
    saved = SaveFiles.at(prefix)
    token = saved.token if saved else TOKEN
    (tmp_path / f"model.ckpt-10.unlisted.{token}").write_text("mine")
    before = content(tmp_path)
    save_files.sweep(str(tmp_path))
    assert content(tmp_path) == before


def test_permanent_checkpoints_stay(tmp_path):
    retention = checkpoints.Retention(1, keep_every_n_hours=1)
    for hour in range(3):
        checkpoints.save(tmp_path, hour, {}, retention=retention, now=hour * 3600.0)
    save_files.sweep(str(tmp_path))
    assert {name[-1] for name in complete_in(tmp_path)} == {"1", "2"}


def test_training_removes_stale_files_before_it_writes(tmp_path):
    remains(SaveFiles(str(tmp_path / "model.ckpt-20")))
    partial = "model.ckpt-20.h5.0f0f0f0f.kte-partial"
    (tmp_path / partial).touch()
    seen = []

    def input_fn(params):
        seen.extend(os.listdir(tmp_path))
        yield from repeated(X, Y)(params)

    estimator_of(model_fn_of(linear), tmp_path).train(input_fn, steps=1)
    assert seen == []


def test_files_that_may_belong_to_a_main_file_stay(tmp_path):
    """The main file may still be copied. TensorFlow checkpoints are unambiguous."""
    remains(SaveFiles(str(tmp_path / "model.ckpt-20")))
    (tmp_path / "model.ckpt-20.h5").write_bytes(b"the first bytes")
    names = {name for name in content(tmp_path) if SaveName.parse(name)}
    save_files.sweep(str(tmp_path))
    gone = {SaveName.parse(n).kind for n in names - content(tmp_path).keys()}
    assert gone == {"data", "meta"}


ENDS = {"whole": ["h5"], "parts": ["h5"], "tensorflow": ["index", "meta"]}
WAYS = [*ENDS]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("end", [".h5", ".index"])
def test_failed_save_over_a_corrupt_one_leaves_nothing(tmp_path, monkeypatch, way, end):
    save(tmp_path, 20, way=way)
    for path in tmp_path.glob("model.ckpt-20*"):
        path.unlink()
    (tmp_path / f"model.ckpt-20{end}").write_bytes(b"the first bytes")
    part = tmp_path / f"model.ckpt-20.shard-0-of-1.{TOKEN}"
    part.write_bytes(stamp(TOKEN))
    before = content(tmp_path)
    full_disk(monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, 20, 2.0, way)
    # Older files may belong to it.
    assert content(tmp_path) == before


def test_unreadable_file_is_not_removed(tmp_path, monkeypatch):
    remains(SaveFiles(str(tmp_path / "model.ckpt-20")))
    before = content(tmp_path)

    def refused(path):
        raise PermissionError(13, "Permission denied", path)

    # Root may read all files.
    with monkeypatch.context() as patch:
        patch.setattr(paths, "opened", refused)
        save_files.sweep(str(tmp_path))
    assert content(tmp_path) == before


@pytest.mark.parametrize("before", WAYS)
@pytest.mark.parametrize("after", WAYS)
def test_saving_a_step_twice_replaces_its_files(tmp_path, before, after):
    prefix = save(tmp_path, 10, 1.0, before).prefix
    for value in (2.0, 3.0):
        save(tmp_path, 10, value, after)
        assert checkpoints.latest_intact(tmp_path) == prefix
        assert kte.load_variable(prefix, "table").tolist() == [value] * 4
        assert read_position(ResumeFiles.at(prefix)).steps == value
    state = state_file.load(str(tmp_path))
    assert [each.name for each in state.saved] == ["model.ckpt-10"]
    names = {f"{prefix}.{end}" for end in ENDS[after]}
    names |= {SaveFiles.at(prefix).position(0, 1), str(tmp_path / "checkpoint")}
    if after == "parts":
        names.add(SaveFiles.at(prefix).named("shard-0-of-1"))
    names |= {*layouts.data_files(prefix)}
    assert {*map(str, tmp_path.iterdir())} == names


@pytest.mark.parametrize("way", WAYS)
def test_failed_save_of_the_same_step_keeps_the_first(tmp_path, way, monkeypatch):
    prefix = save(tmp_path, 10, 1.0, way).prefix
    before = content(tmp_path)
    full_disk(monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, 10, 2.0, way)
    assert content(tmp_path) == before
    assert checkpoints.latest_intact(tmp_path) == prefix


def test_iterator_state_is_never_that_of_another_save(tmp_path):
    prefix = save(tmp_path, 10, 1.0, "whole").prefix
    assert read_position(ResumeFiles.at(prefix)).steps == 1
    # A user rewrites it.
    checkpoints.save(tmp_path, 10, {"table": np.zeros(4)})
    assert read_position(ResumeFiles.at(prefix)) is None
    assert not [*tmp_path.glob("*.input*")]


def test_each_tensorflow_checkpoint_has_its_own_data(tmp_path):
    counts = []
    for value in (1.0, 2.0, 3.0):
        prefix = save(tmp_path, 10, value, "tensorflow").prefix
        counts.append(len(layouts.data_files(prefix)))
        reader = tf.train.NewCheckpointReader(prefix)
        assert reader.get_tensor("table").tolist() == [value] * 4
        with tf.Graph().as_default(), tf.Session() as session:
            made = tf.get_variable("table", (4,), tf.float64)
            tf.train.Saver().restore(session, prefix)
            assert session.run(made).tolist() == [value] * 4
        with tf.Graph().as_default(), tf.Session() as session:
            tf.train.import_meta_graph(prefix + ".meta").restore(session, prefix)
    assert counts == [1, 2, 1]


def test_checkpoint_written_by_tensorflow_is_replaced_completely(tmp_path):
    prefix = str(tmp_path / "model.ckpt-10")
    assert save_by_tensorflow(tmp_path) == prefix
    for way in WAYS:
        save(tmp_path, 10, 2.0, way)
        assert kte.load_variable(prefix, "table").tolist() == [2.0] * 4
    assert len([*tmp_path.glob("model.ckpt-10*")]) == 4


def test_description_always_matches_the_index(tmp_path, monkeypatch):
    saved = SaveFiles(str(tmp_path / "model.ckpt-10"))
    formats.write(saved, {"a": np.zeros(2), "b": np.zeros(2)}, "tensorflow")
    replace, seen = os.replace, []

    def noted(source, target):
        seen.append((target[-5:], os.path.exists(saved.prefix + ".meta")))
        replace(source, target)

    monkeypatch.setattr(os, "replace", noted)
    formats.write(SaveFiles(saved.prefix), {"c": np.zeros(3)}, "tensorflow")
    assert ("index", False) in seen
    assert os.path.exists(saved.prefix + ".meta")


@pytest.mark.parametrize("head", [b"", b"\0", b"\0\0\x06", bytes(64)])
def test_invalid_index_has_no_data(tmp_path, head):
    (tmp_path / "model.ckpt-10.index").write_bytes(head)
    assert layouts.data_files(str(tmp_path / "model.ckpt-10")) == []


def test_file_of_a_broken_upload_is_removed(tmp_path):
    checkpoints.save(tmp_path, 10, {})
    before = {*os.listdir(tmp_path)}
    saved = SaveFiles(str(tmp_path / "model.ckpt-20"), TOKEN)
    with pytest.raises(OSError), saved.tidied_on_failure():
        write_position(saved, Position(20, StepRecipe(None, 1, None)))
        path = saved.position(0, 1)
        os.truncate(path, os.path.getsize(path) // 2)
        raise OSError("the upload broke off")
    assert {*os.listdir(tmp_path)} == before


@pytest.mark.parametrize("left", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("way", ["whole", "parts"])
def test_files_of_an_upload_that_was_killed_are_removed(tmp_path, left, way):
    checkpoints.save(tmp_path, 10, {})
    before = {*os.listdir(tmp_path)}
    saved = save(tmp_path / "20", 20, way=way)
    write_states(saved, pack_states([]))
    saved.mark_unlisted()
    for path in (tmp_path / "20").glob("model.ckpt-20*"):
        if ".unlisted." not in path.name:
            os.truncate(path, int(path.stat().st_size * left))
        path.rename(tmp_path / path.name)
    shutil.rmtree(tmp_path / "20")
    save_files.sweep(str(tmp_path))
    assert {*os.listdir(tmp_path)} == before


@pytest.mark.parametrize("way", ["whole", "parts"])
def test_checkpoint_cut_off_without_a_marker_stays(tmp_path, way):
    save(tmp_path, 10, way=way, position=False)
    os.truncate(tmp_path / "model.ckpt-10.h5", 200)
    before = content(tmp_path)
    save_files.sweep(str(tmp_path))
    assert content(tmp_path) == before
