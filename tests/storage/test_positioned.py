"""Files are read and written at offsets where the system has no such calls."""

import os

import numpy as np
import pytest

from keras_tpu_estimator.files.atomic import checksum, pieces
from keras_tpu_estimator.ground.storage import positioned


@pytest.fixture(params=[True, False], ids=["posix", "windows"])
def calls(request, monkeypatch):
    """With and without what Windows and old releases of macOS lack."""
    if not request.param:
        monkeypatch.delattr(os, "preadv")
        monkeypatch.delattr(os, "pwrite")


@pytest.mark.usefixtures("calls")
def test_the_position_stays(tmp_path):
    with open(tmp_path / "file", "wb+") as file:
        file.write(b"content")
        file.flush()
        file.seek(3)
        memory = memoryview(bytearray(9))
        assert positioned.read(file.fileno(), memory, 1) == 6
        assert bytes(memory[:6]) == b"ontent"
        assert positioned.write(file.fileno(), memoryview(b"C"), 0) == 1
        assert file.read() == b"tent"
        assert positioned.read(file.fileno(), memory, 7) == 0
    assert (tmp_path / "file").read_bytes() == b"Content"


@pytest.mark.usefixtures("calls")
def test_several_threads_read_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "_PIECE", 1000)
    monkeypatch.setattr(pieces, "_CHUNK", 300)
    path = str(tmp_path / "file")
    array = np.arange(50_000, dtype="int32")
    with open(path, "wb") as file:
        file.write(b"before")
    written = pieces.write(path, [pieces.Extent.of(6, array)])
    checksum.append(path, written)
    found = np.empty_like(array)
    loaded = checksum.load(path)
    assert len(loaded) == 200
    pieces.read(path, [pieces.Extent.of(6, found)], loaded)
    np.testing.assert_array_equal(found, array)
    assert checksum.is_right(path)
