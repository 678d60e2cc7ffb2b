"""Tests that a sparse file behaves like a file in memory."""

import io
import os

import numpy as np
import pytest

from keras_tpu_estimator.files.formats.hdf5.writer import SparseFile


@pytest.mark.parametrize("seed", range(4))
def test_sparse_file_is_like_a_file_in_memory(seed):
    rng = np.random.default_rng(seed)
    sparse, plain = SparseFile(), io.BytesIO()
    for _ in range(50):
        at, length = int(rng.integers(300_000)), int(rng.integers(150_000))
        content = rng.bytes(length)
        for file in (sparse, plain):
            file.seek(at)
            assert file.write(content) == length
            file.seek(at // 2)
        assert sparse.read(1000) == plain.read(1000)
        assert sparse.tell() == plain.tell()
    assert sparse.seek(0, os.SEEK_END) == plain.seek(0, os.SEEK_END)
    copy = bytearray(sparse.tell())
    for offset, page in sparse.pages():
        copy[offset : offset + len(page)] = page
    assert copy == plain.getvalue()


def test_sparse_file_can_be_truncated():
    file = SparseFile()
    file.write(b"content")
    assert file.truncate(3) == 3
    assert [bytes(page) for _, page in file.pages()] == [b"con"]
    file.truncate(1 << 40)
    assert file.seek(-1, os.SEEK_END) == (1 << 40) - 1
    assert file.read(10) == b"\0"
    assert file.read(10) == b""
