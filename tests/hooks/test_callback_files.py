"""Tests the files of Keras callbacks on the chief and on other processes."""

import os

import keras
import pytest

from keras_tpu_estimator.api.hooks import callback_hook
from keras_tpu_estimator.api.hooks.callback_hook import called_here, files_of_chief


@pytest.fixture
def another_process(monkeypatch):
    monkeypatch.setattr(callback_hook, "is_chief", lambda: False)


class OwnCheckpoint(keras.callbacks.ModelCheckpoint):
    pass


WRITERS = {
    "filename": keras.callbacks.CSVLogger("runs/log.csv"),
    "filepath": OwnCheckpoint("runs/{epoch}.weights.h5", verbose=1),
    "log_dir": keras.callbacks.TensorBoard("runs/tb"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_chief_writes_to_the_given_paths(name):
    before = dict(vars(WRITERS[name]))
    with files_of_chief([WRITERS[name]]):
        assert vars(WRITERS[name]) == before


@pytest.mark.parametrize("name", WRITERS)
def test_other_processes_write_to_a_temporary_directory(name, another_process):
    writer = WRITERS[name]
    before = dict(vars(writer))
    with files_of_chief([keras.callbacks.History(), writer]):
        path = getattr(writer, name)
        assert os.path.isdir(os.path.dirname(path))
        assert os.path.basename(path) == os.path.basename(before[name])
        assert not getattr(writer, "verbose", 0)
    assert vars(writer) == before
    assert not os.path.exists(os.path.dirname(path))


def test_writers_with_the_same_name_have_different_paths(another_process):
    pair = [keras.callbacks.CSVLogger(f"{each}/log.csv") for each in "ab"]
    with files_of_chief(pair):
        first, second = (each.filename for each in pair)
        assert first != second


def test_writer_is_restored_after_an_error(another_process):
    logger = keras.callbacks.CSVLogger("log.csv")
    with pytest.raises(KeyError), files_of_chief([logger]):
        raise KeyError
    assert logger.filename == "log.csv"


def test_all_keras_callbacks_are_considered():
    classes = {
        kind for kind in vars(keras.callbacks).values() if isinstance(kind, type)
    }
    written = {*callback_hook._PATHS, keras.callbacks.BackupAndRestore}
    # Orbax's manager coordinates processes itself.
    written.add(keras.callbacks.OrbaxCheckpoint)
    path = {"filename", "filepath", "log_dir", "backup_dir", "directory"}
    with_path = {
        kind for kind in classes if path & {*kind.__init__.__code__.co_varnames}
    }
    assert with_path == written


def test_only_the_chief_sends_reports(another_process, monkeypatch):
    monitor = keras.callbacks.RemoteMonitor()
    history = keras.callbacks.History()
    assert called_here([monitor, history]) == (history,)
    monkeypatch.setattr(callback_hook, "is_chief", lambda: True)
    assert called_here([monitor, history]) == (monitor, history)


@pytest.mark.parametrize("chief", [False, True])
def test_backup_is_refused_on_every_process(chief, monkeypatch):
    backup = keras.callbacks.BackupAndRestore("backup")
    monkeypatch.setattr(callback_hook, "is_chief", lambda: chief)
    assert called_here([backup]) == (backup,)
    monkeypatch.setattr(callback_hook, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="must not be used with several pro"):
        called_here([backup])
