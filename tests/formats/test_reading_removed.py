"""Tests checkpoints that training removes while they are read."""

import os

import numpy as np
import pytest
from sharded_saves import shard_values, write_shards

import keras_tpu_estimator as kte
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.base.common.index_ranges import IndexRanges
from keras_tpu_estimator.checkpoints import SaveFiles
from keras_tpu_estimator.files.checkpoints.saving import save_into
from keras_tpu_estimator.files.directory import location, save_files
from keras_tpu_estimator.files.formats.hdf5 import reader

TABLE = np.arange(8.0)
SAID = "model.ckpt-20.*was removed or replaced before all of it was read"


def save(directory, is_spread, step=20, scale=1.0):
    """Saves a checkpoint, with or without a variable in shards of two hosts."""
    table = TABLE * scale
    saved = SaveFiles(os.path.join(directory, f"model.ckpt-{step}"))
    values = {"table": table, "bias": np.full(2, scale)}
    receipts = ()
    if is_spread:
        halves = {IndexRanges((0,), (4,)): 0, IndexRanges((4,), (8,)): 1}
        sharded, receipts = write_shards(saved, {"table": shard_values(table, halves)})
        values |= sharded
    save_into(
        saved, step, values, retention=checkpoints.Retention(1), receipts=receipts
    )
    return saved.prefix


def retain(directory, is_spread):
    """Lets retention remove the checkpoint."""
    save(directory, is_spread, step=30)


def save_again(directory, is_spread):
    """Saves other values at the same step."""
    save(directory, is_spread, scale=2.0)


GONE = pytest.mark.parametrize("gone", [retain, save_again])
SPREAD = pytest.mark.parametrize("is_spread", [False, True])


@GONE
@SPREAD
def test_open_files_can_be_read_to_their_end(tmp_path, gone, is_spread):
    reader = kte.load_checkpoint(save(tmp_path, is_spread))
    with reader.held_open():
        bias = reader.get_tensor("bias")
        gone(tmp_path, is_spread)
        half = reader.get_part("table", np.s_[2:6,])
        np.testing.assert_array_equal(half, TABLE[2:6])
        np.testing.assert_array_equal(reader.get_tensor("table"), TABLE)
        np.testing.assert_array_equal(reader.get_tensor("bias"), bias)


@SPREAD
def test_file_that_was_removed_before_opening_is_named(tmp_path, is_spread):
    reader = kte.load_checkpoint(save(tmp_path, is_spread))
    retain(tmp_path, is_spread)
    with pytest.raises(ValueError, match=f"{SAID}.*model.ckpt-30"):
        reader.get_tensor("table")


@GONE
def test_shards_that_were_removed_before_opening_are_named(tmp_path, monkeypatch, gone):
    prefix = save(tmp_path, True)
    hold = reader.OpenedCheckpoint.hold

    def late(self):
        with monkeypatch.context() as patch:
            patch.setattr(type(self), "hold", hold)
            gone(tmp_path, True)
        hold(self)

    monkeypatch.setattr(reader.OpenedCheckpoint, "hold", late)
    with pytest.raises(ValueError, match=SAID):
        checkpoints.read(prefix)


def test_latest_is_searched_again_if_missing(tmp_path, caplog):
    save(tmp_path, False)
    seen = []

    def is_intact(prefix):
        if not seen:
            retain(tmp_path, False)
        seen.append(os.path.basename(prefix))
        return location.exists(prefix)

    newest = checkpoints.latest_intact(tmp_path, is_intact)
    assert newest == str(tmp_path / "model.ckpt-30")
    assert seen == ["model.ckpt-20", "model.ckpt-30"]
    assert "damaged" not in caplog.text


def test_removed_tensorflow_checkpoint_is_named(tmp_path):
    values = {"table": TABLE, "bias": np.zeros(2)}
    prefix = checkpoints.save(tmp_path, 20, values, format_name="tensorflow")
    reader = kte.load_checkpoint(prefix)
    save_files.remove(prefix)
    with pytest.raises(ValueError, match=SAID):
        reader.get_tensor("table")
