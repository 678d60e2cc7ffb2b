"""Tests local copies and their lifetime."""

import gc
import os

import pytest

from keras_tpu_estimator.base.storage import paths, transfers
from keras_tpu_estimator.base.storage.transfers import local_copy

URL = "memory://bucket/file"


@pytest.fixture
def fetched(memory, monkeypatch):
    """The fetched file, unchanged."""
    seen = []
    fetch = transfers.fetch

    def noted(url, local):
        seen.append(url)
        fetch(url, local)

    monkeypatch.setattr(transfers, "fetch", noted)
    return seen


def content(copy):
    with open(copy.path, "rb") as file:
        return file.read()


def test_a_local_file_is_not_copied(tmp_path):
    assert local_copy(str(tmp_path)).path == str(tmp_path)


def test_a_file_is_fetched_once_for_each_version(fetched):
    transfers.put_bytes(b"first", URL)
    assert content(local_copy(URL)) == content(local_copy(URL)) == b"first"
    assert fetched == [URL]
    transfers.put_bytes(b"other", URL)
    assert content(local_copy(URL)) == b"other"
    assert fetched == [URL, URL]


def test_files_written_here_are_not_fetched(fetched):
    copy = transfers.Copy("file")
    with open(copy.path, "wb") as file:
        file.write(b"content")
    transfers.put(copy.path, URL)
    transfers.keep(URL, copy)
    assert local_copy(URL) is copy
    assert fetched == []


def test_copies_are_limited_but_kept_while_in_use(fetched):
    urls = [f"{URL}-{number}" for number in range(4)]
    for url in urls:
        transfers.put_bytes(url.encode(), url)
    in_use = local_copy(urls[0])
    folders = [os.path.dirname(local_copy(url).path) for url in urls[1:]]
    gc.collect()
    assert content(in_use) == urls[0].encode()
    assert [os.path.isdir(folder) for folder in folders] == [False, True, True]


def test_prefix_has_several_files(fetched):
    for end in (".index", ".data-00000-of-00001"):
        transfers.put_bytes(end.encode(), URL + end)
    copy = local_copy(URL, [".index", ".data-00000-of-00001"])
    folder = os.path.dirname(copy.path)
    assert sorted(os.listdir(folder)) == [
        "file.data-00000-of-00001",
        "file.index",
    ]


def test_missing_file_is_an_error(fetched):
    transfers.put_bytes(b"content", URL)
    local_copy(URL)
    paths.remove(URL)
    with pytest.raises(FileNotFoundError):
        local_copy(URL)
