"""Tests checkpoints of variables whose shards are written by several hosts."""

import os
import pathlib
import shutil

import h5py
import ml_dtypes
import numpy as np
import pytest
from sharded_saves import shard_values, write_shards

import keras_tpu_estimator as kte
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.base.common.index_ranges import IndexRanges, boxes_of_run
from keras_tpu_estimator.checkpoints import SaveFiles
from keras_tpu_estimator.files.atomic import checksum
from keras_tpu_estimator.files.checkpoints.saving import save_into
from keras_tpu_estimator.files.formats import registry as formats
from keras_tpu_estimator.files.inspection import Directory, verify

KERNEL = np.arange(48.0, dtype="float32").reshape(6, 8)
BIAS = np.arange(8).astype(ml_dtypes.bfloat16)
VALUES = {"up/kernel": KERNEL, "up": BIAS, "step_size": np.float32(0.5)}


def spread(value, *counts):
    """Divides a value into shards along each dimension, for two hosts."""
    hosts = {}
    for number in np.ndindex(*counts):
        size = np.array(value.shape) // counts
        start = size * number
        box = IndexRanges(tuple(start.tolist()), tuple((start + size).tolist()))
        hosts[box] = len(hosts) % 2
    return shard_values(value, hosts)


def write_two(directory, step=20, scale=1):
    """Writes the shards of a save, without the main file."""
    saved = SaveFiles(os.path.join(directory, f"model.ckpt-{step}"))
    values = {"up/kernel": spread(KERNEL * scale, 2, 4), "up": spread(BIAS, 2)}
    return saved, *write_shards(saved, values)


def save(directory, step=20, scale=1, retention=None):
    """Saves a checkpoint with shards of two hosts."""
    saved, values, receipts = write_two(directory, step, scale)
    values["step_size"] = VALUES["step_size"]
    retention = retention or checkpoints.Retention()
    save_into(saved, step, values, retention=retention, receipts=receipts)
    return saved.prefix


def part_of(prefix, number):
    """The path of a host's file."""
    return SaveFiles.at(prefix).named(f"shard-{number}-of-2")


def damage(path):
    """Changes a bit of the last piece of a file."""
    *_, piece = checksum.load(str(path)).values()
    with open(path, "rb+") as file:
        file.seek(piece.offset)
        byte = file.read(1)[0]
        file.seek(piece.offset)
        file.write(bytes([byte ^ 1]))
    os.utime(path, (1, 1))


def test_complete_values_are_read(tmp_path):
    prefix = save(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [
        "checkpoint",
        "model.ckpt-20.h5",
        *(os.path.basename(part_of(prefix, number)) for number in range(2)),
    ]
    assert kte.list_variables(tmp_path) == [
        ("global_step", []),
        ("step_size", []),
        ("up", [8]),
        ("up/kernel", [6, 8]),
    ]
    read = checkpoints.read(prefix)
    for name, value in VALUES.items():
        assert read[name].dtype == value.dtype
        np.testing.assert_array_equal(read[name], value)
        np.testing.assert_array_equal(kte.load_variable(prefix, name), value)
    assert Directory.at(str(tmp_path)).num_parameters == 58
    assert verify(prefix).is_intact
    with h5py.File(prefix + ".h5") as file:
        np.testing.assert_array_equal(file["up/kernel"], KERNEL)


@pytest.mark.parametrize("is_sharded", [True, False])
@pytest.mark.parametrize(
    "box",
    [
        IndexRanges((0, 0), (6, 8)),
        IndexRanges((0, 2), (3, 4)),
        IndexRanges((2, 1), (5, 7)),
        IndexRanges((1, 0), (2, 8)),
        IndexRanges((4, 4), (4, 8)),
    ],
)
def test_shards_are_read_separately(tmp_path, monkeypatch, box, is_sharded):
    # Rows of 32 bytes span several pieces.
    monkeypatch.setattr(checksum, "_PIECE", 24)
    monkeypatch.setattr(checksum, "_CHUNK", 8)
    prefix = (
        save(tmp_path)
        if is_sharded
        else checkpoints.save(tmp_path, 20, {"up/kernel": KERNEL})
    )
    reader = kte.load_checkpoint(prefix)
    part = reader.get_part("up/kernel", box.slices)
    np.testing.assert_array_equal(part, KERNEL[box.slices])
    with reader.held_open():
        np.testing.assert_array_equal(
            reader.get_part("up/kernel", box.slices), KERNEL[box.slices]
        )


def test_unread_shard_may_be_missing(tmp_path):
    prefix = save(tmp_path)
    os.remove(part_of(prefix, 1))
    box = IndexRanges((0, 0), (3, 2))
    part = kte.load_checkpoint(prefix).get_part("up/kernel", box.slices)
    np.testing.assert_array_equal(part, KERNEL[box.slices])


@pytest.mark.parametrize("shape", [(5,), (4, 3), (3, 1, 2, 2)])
def test_ranges_are_divided_into_boxes(shape):
    array = np.arange(np.prod(shape)).reshape(shape)
    for start in range(array.size):
        for stop in range(start + 1, array.size + 1):
            found = []
            for at, box in boxes_of_run(start, stop, shape):
                part = array[box.slices].ravel().tolist()
                assert part[0] == at
                found += part
            assert found == [*range(start, stop)]


def remove(path):
    os.remove(path)


def cut(path):
    os.truncate(path, 100)


def take_another(path):
    """Replaces the file by that of another checkpoint."""
    directory = pathlib.Path(path).parent / "other"
    shutil.copy(part_of(save(directory, scale=2), 1), path)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (remove, "is missing"),
        (damage, r"is corrupt \(the checksum of its bytes"),
        (cut, r"is corrupt \(its checksum is wrong or missing"),
        (take_another, r"is corrupt \(it belongs to another checkpoint"),
    ],
)
def test_corrupt_checkpoint_is_named_and_ignored(tmp_path, harm, reason):
    older = save(tmp_path, step=10)
    prefix = save(tmp_path)
    shard = part_of(prefix, 1)
    harm(shard)
    said = rf"shard \[\S+, \S+\] of the variable 'up/kernel' .*{shard}', "
    with pytest.raises(ValueError, match=said + "which " + reason):
        checkpoints.read(prefix, ["up/kernel"])
    assert checkpoints.latest_intact(tmp_path) == older
    verdict = verify(prefix)
    assert not verdict.is_intact
    assert shard in verdict.problem


def test_hosts_check_only_their_files(tmp_path):
    prefix = save(tmp_path)
    damage(part_of(prefix, 1))
    assert formats.is_intact(prefix, host=0, hosts=2)
    assert not formats.is_intact(prefix, host=1, hosts=2)
    # No reader mistakes a shard for the complete value.
    assert not formats.is_intact(prefix)


def test_save_killed_between_files_is_ignored(tmp_path):
    older = save(tmp_path, step=10)
    there = set(os.listdir(tmp_path))
    # The same step is saved again with other values, but without a main file.
    write_two(tmp_path, step=10, scale=2)
    write_two(tmp_path, step=20)
    assert checkpoints.latest_intact(tmp_path) == older
    kernel = kte.load_variable(older, "up/kernel")
    np.testing.assert_array_equal(kernel, KERNEL)
    assert len(os.listdir(tmp_path)) == len(there) + 4
    newest = save(tmp_path, step=30)
    assert checkpoints.latest_intact(tmp_path) == newest
    # Files without a checkpoint are removed.
    assert {n for n in os.listdir(tmp_path) if "ckpt-30" not in n} == there


def test_no_file_of_old_checkpoints_stays(tmp_path):
    retention = checkpoints.Retention(max_to_keep=1)
    for step in (10, 20):
        prefix = save(tmp_path, step, retention=retention)
    names = {str(path) for path in tmp_path.glob("model*")}
    parts = {part_of(prefix, number) for number in range(2)}
    assert names == {prefix + ".h5", *parts}
    checkpoints.save(tmp_path, 20, VALUES, retention=retention)
    assert [*map(str, tmp_path.glob("model*"))] == [prefix + ".h5"]


def test_other_files_are_not_followed(tmp_path):
    prefix = save(tmp_path)
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["a"] = KERNEL
    path = str(tmp_path / "model.ckpt-30.h5")
    layout = h5py.VirtualLayout(KERNEL.shape, "f4")
    layout[:] = h5py.VirtualSource(str(secret), "a", KERNEL.shape)
    with h5py.File(path, "w", libver="latest") as file:
        file.create_virtual_dataset("a", layout)
        file.attrs[str(secret)] = 1
    checksum.append(path)
    with pytest.raises(ValueError, match="are in another file"):
        checkpoints.read(path)
    assert checkpoints.latest_intact(tmp_path) == prefix


@pytest.mark.parametrize(
    ("directory", "basename"),
    [("run", "model.ckpt"), ("50%b", "%b"), ("50%%", "100%%d-%")],
)
def test_percent_signs_are_not_format_strings(tmp_path, directory, basename):
    paths = ["a%b/kernel", "%", "%%0", "%1/%b", "a%b", "plain"]
    saved = SaveFiles(str(tmp_path / directory / f"{basename}-20"))
    values, receipts = write_shards(
        saved, {path: spread(KERNEL, 2, 2) for path in paths}
    )
    save_into(saved, 20, values, retention=checkpoints.Retention(), receipts=receipts)
    read = checkpoints.read(saved.prefix)
    assert read.keys() == {*paths, "global_step"}
    for path in paths:
        np.testing.assert_array_equal(read[path], KERNEL)
    with h5py.File(saved.prefix + ".h5") as file:
        np.testing.assert_array_equal(file["a%b/kernel"], KERNEL)
    assert checkpoints.latest_intact(tmp_path / directory) == saved.prefix
    assert verify(saved.prefix).is_intact


def test_behind_a_url(tmp_path):
    prefix = save("memory://sharded/run")
    read = kte.load_variable(prefix, "up/kernel")
    np.testing.assert_array_equal(read, KERNEL)
    assert checkpoints.latest_intact("memory://sharded/run") == prefix
    kte.checkpoints.save("memory://sharded/run", 20, VALUES)
    assert verify(prefix).is_intact


@pytest.mark.parametrize(
    "index", [np.s_[0:2,], np.s_[0:2, 0:4:2], np.s_[0:2, 0:4, 0:1]]
)
def test_mismatched_slices_are_refused(tmp_path, index):
    reader = kte.load_checkpoint(save(tmp_path))
    with pytest.raises(ValueError, match="a slice of step 1 for each dimension"):
        reader.get_part("up/kernel", index)
