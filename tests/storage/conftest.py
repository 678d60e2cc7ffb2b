"""Stores for the tests in this directory."""

import fsspec
import pytest
import shelf as shelves

from keras_tpu_estimator.base.storage import transfers
from keras_tpu_estimator.files.summary import event_writer


@pytest.fixture(autouse=True)
def nothing_at_hand(monkeypatch):
    """Discards copies and event files of earlier tests."""
    monkeypatch.setattr(transfers, "_KEPT", {})
    monkeypatch.setattr(event_writer, "_shared_writers", {})


@pytest.fixture
def memory():
    """An empty store in this process's memory."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]
    yield filesystem
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """The directory behind 'shelf://' URLs."""
    monkeypatch.setenv(shelves.ROOT, str(tmp_path))
    shelves.register()
    return tmp_path
