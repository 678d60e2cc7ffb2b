"""Tests checksums of a file's pieces, and of the bytes between them."""

import os
import pathlib

import numpy as np
import pytest

import keras_tpu_estimator as kte
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.files.atomic import checksum
from keras_tpu_estimator.files.atomic.checksum import Extent, Piece
from keras_tpu_estimator.files.formats import registry

BIAS = np.arange(3, dtype="float32")
KERNEL = np.arange(1, 7, dtype="float32")


@pytest.fixture
def file(tmp_path):
    prefix = checkpoints.save(tmp_path, 7, {"dense/bias": BIAS, "dense/kernel": KERNEL})
    return pathlib.Path(prefix + ".h5")


@pytest.fixture
def small_pieces(monkeypatch):
    """Pieces of eight bytes, of which threads read three at a time."""
    monkeypatch.setattr(checksum, "_PIECE", 8)
    monkeypatch.setattr(checksum, "_CHUNK", 3)


def flip(file, at):
    """Changes a bit, and the file's time."""
    status = file.stat()
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(0, status.st_mtime_ns + 1))


def test_any_flipped_bit_is_detected(file):
    size = file.stat().st_size
    data = file.read_bytes().index(KERNEL.tobytes())
    everywhere = {*range(0, size, 61), *range(data, data + KERNEL.nbytes)}
    for at in sorted(everywhere | {*range(size - 100, size)}):
        flip(file, at)
        assert not checksum.is_right(str(file)), at
        flip(file, at)
    assert checksum.is_right(str(file))


@pytest.mark.parametrize("cut", [1, 27, 28, 29, 60, 1000])
def test_truncation_is_detected(file, cut):
    os.truncate(file, file.stat().st_size - cut)
    assert checksum.load(str(file)) is None


def test_corruption_only_affects_reads_of_that_piece(file):
    flip(file, file.read_bytes().index(KERNEL.tobytes()))

    np.testing.assert_array_equal(kte.load_variable(file, "dense/bias"), BIAS)
    assert checkpoints.step_of(file) == 7
    with pytest.raises(ValueError, match=r"corrupt.*its bytes at \d+ is wrong"):
        kte.load_variable(file, "dense/kernel")
    with pytest.raises(ValueError, match=r"corrupt.*its bytes at \d+ is wrong"):
        checkpoints.read(file)


def test_one_variable_is_read_without_the_others(file, monkeypatch):
    read = []
    original = os.preadv

    def preadv(descriptor, buffers, offset):
        count = original(descriptor, buffers, offset)
        read.append((offset, offset + count))
        return count

    monkeypatch.setattr(os, "preadv", preadv)
    kte.load_variable(file, "dense/bias")
    kernel = file.read_bytes().index(KERNEL.tobytes())
    assert not any(start <= kernel < end for start, end in read)


def test_many_pieces_are_read(tmp_path, small_pieces):
    values = {
        "large": np.arange(1000, dtype="int64"),
        "odd": np.arange(13, dtype="uint8"),
        "small": np.ones(1, "float32"),
    }
    prefix = checkpoints.save(tmp_path, 1, values)

    table = checksum.load(prefix + ".h5")
    assert sum(piece.length for piece in table.values()) == 8000 + 13 + 4
    assert max(piece.length for piece in table.values()) == 8
    for path, value in checkpoints.read(prefix, values).items():
        np.testing.assert_array_equal(value, values[path])


def test_corruption_in_one_of_many_pieces(tmp_path, small_pieces):
    value = np.arange(1000, dtype="int64")
    file = pathlib.Path(checkpoints.save(tmp_path, 1, {"v": value}) + ".h5")
    flip(file, file.read_bytes().index(value.tobytes()) + 4000)

    assert not checksum.is_right(str(file))
    with pytest.raises(ValueError, match="truncated or corrupt"):
        kte.load_variable(file, "v")


@pytest.mark.parametrize(
    "table",
    [
        [Piece(0, 4, 0), Piece(2, 4, 0)],
        [Piece(4, 100, 0)],
        [Piece(1 << 63, 4, 0)],
    ],
)
def test_invalid_pieces_are_refused(tmp_path, table):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with pytest.raises(checksum.CorruptPieceError):
        checksum.append(str(path), table)


@pytest.mark.parametrize("known", [{}, {0: Piece(0, 0, 0)}, {0: Piece(0, 9, 0)}])
def test_range_must_consist_of_pieces(tmp_path, known):
    path = tmp_path / "file"
    path.write_bytes(b"contents")
    with pytest.raises(checksum.CorruptPieceError, match="its bytes at 0"):
        checksum.read(str(path), [Extent.from_array(0, np.empty(2, "float32"))], known)


def test_verified_pieces_are_not_reread(file, monkeypatch):
    flip(file, -1)
    flip(file, -1)  # The file differs from the written one.
    prefix = str(file).removesuffix(".h5")
    assert registry.is_intact(prefix)
    monkeypatch.setattr(checksum, "check", None)
    assert registry.is_intact(prefix)


def test_written_pieces_are_not_reread(file, monkeypatch):
    monkeypatch.setattr(checksum, "check", None)
    assert registry.is_intact(str(file).removesuffix(".h5"))
