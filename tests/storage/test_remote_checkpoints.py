"""Tests checkpoints at URLs: writing, reading, following, starting from them."""

import os
import pathlib
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - writes the files to read
from helpers import estimator_of, linear, model_fn_of, regression_data, repeated

import keras_tpu_estimator as kte
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.base.storage import paths, transfers
from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.files.directory import location, retention, state_file

URL = "memory://bucket/run"
KERNEL = np.arange(3, dtype="float32")[:, None]
BIAS = np.ones(1, "float32")
VALUES = {"dense/kernel": KERNEL, "dense/bias": BIAS}
X, Y = regression_data()

pytestmark = pytest.mark.usefixtures("memory")


def upload(directory, url=URL):
    """Uploads local files to a URL."""
    for file in sorted(pathlib.Path(directory).rglob("*")):
        if file.is_file():
            name = file.relative_to(directory).as_posix()
            transfers.put_bytes(file.read_bytes(), f"{url}/{name}")


def names():
    return sorted(paths.names_in(URL))


def test_saved_checkpoint_is_read():
    prefix = checkpoints.save(URL, 20, VALUES)
    assert prefix == f"{URL}/model.ckpt-20"
    assert names() == ["checkpoint", "model.ckpt-20.h5"]
    transfers._KEPT.clear()
    for path in (prefix, f"{prefix}.h5", URL, f"{URL}/"):
        np.testing.assert_array_equal(kte.load_variable(path, "dense/kernel"), KERNEL)
    assert checkpoints.latest_intact(URL) == kte.latest_checkpoint(URL) == prefix
    assert checkpoints.step_of(prefix) == 20


def test_the_functions_of_tf_train():
    prefix = checkpoints.save(URL, 20, VALUES)
    reader = kte.load_checkpoint(URL)
    assert reader.path == prefix
    np.testing.assert_array_equal(reader.get_tensor("dense/bias"), BIAS)
    assert kte.list_variables(prefix) == [
        ("dense/bias", [1]),
        ("dense/kernel", [3, 1]),
        ("global_step", []),
    ]
    assert kte.load_variable(f"{prefix}.h5", "dense/bias:0") == BIAS


def test_old_checkpoints_are_also_removed_from_stores():
    for step in range(4):
        checkpoints.save(
            URL, step, VALUES, retention=checkpoints.Retention(max_to_keep=2)
        )
    assert names() == ["checkpoint", "model.ckpt-2.h5", "model.ckpt-3.h5"]


def test_list_only_names_existing_files(monkeypatch):
    """This holds at each moment, because other processes may read at any time."""
    put, remove = transfers.put, paths.remove

    def then_look(act):
        def acting(*arguments, **settings):
            act(*arguments, **settings)
            listed = location.listed(URL)
            assert all(map(location.exists, listed))

        return acting

    monkeypatch.setattr(transfers, "put", then_look(put))
    monkeypatch.setattr(paths, "remove", then_look(remove))
    for step in range(3):
        checkpoints.save(
            URL, step, VALUES, retention=checkpoints.Retention(max_to_keep=1)
        )
    assert names() == ["checkpoint", "model.ckpt-2.h5"]


@pytest.mark.parametrize("file", ["model.ckpt-2.h5", "checkpoint"])
def test_failed_upload_keeps_existing_checkpoints(file, monkeypatch):
    checkpoints.save(URL, 1, VALUES)
    put = transfers.put

    def put_or_fail(local, path):
        if path.endswith(file):
            raise ConnectionError("the network is down")
        put(local, path)

    monkeypatch.setattr(transfers, "put", put_or_fail)
    keep_one = checkpoints.Retention(max_to_keep=1)
    with pytest.raises(ConnectionError, match="network is down"):
        checkpoints.save(URL, 2, VALUES, retention=keep_one)
    assert checkpoints.latest(URL) == f"{URL}/model.ckpt-1"
    assert checkpoints.latest_intact(URL) == f"{URL}/model.ckpt-1"


def test_corrupt_checkpoint_is_skipped(caplog):
    older = checkpoints.save(URL, 1, VALUES)
    newer = checkpoints.save(URL, 2, VALUES)
    transfers.put_bytes(b"something else", f"{newer}.h5")
    assert checkpoints.latest_intact(URL) == older
    with pytest.raises(ValueError, match=f"{newer}.h5.*truncated or corrupt"):
        checkpoints.read(newer)


def test_iterator_follows_a_directory():
    iterator = kte.checkpoints_iterator(URL, timeout=0)
    first = checkpoints.save(URL, 1, VALUES)
    assert next(iterator) == first
    second = checkpoints.save(URL, 2, VALUES)
    assert list(iterator) == [second]


@pytest.mark.parametrize("directory", [URL, "local"])
def test_list_may_contain_a_url(directory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prefix = checkpoints.save("memory://bucket/other", 20, VALUES)
    os.makedirs("local")
    with commit.replacing(f"{directory}/checkpoint") as partial:
        pathlib.Path(partial).write_text(f'model_checkpoint_path: "{prefix}"')
    assert kte.latest_checkpoint(directory) == prefix


def test_writers_are_found_after_a_change_of_the_working_directory(
    tmp_path, monkeypatch
):
    may_end = threading.Event()
    writer = location.Writer()
    writer.start(URL, may_end.wait)
    monkeypatch.chdir(tmp_path)
    waiting = threading.Thread(target=location.wait_for, args=(f"{URL}/",))
    waiting.start()
    waiting.join(0.1)
    is_waiting = waiting.is_alive()
    may_end.set()
    waiting.join()
    writer.wait()
    assert is_waiting


def test_end_of_training_is_marked():
    assert not checkpoints.training_is_complete(URL)
    state_file.mark_complete(URL, 20)
    assert checkpoints.training_is_complete(URL)
    state_file.unmark_complete(URL)
    assert not checkpoints.training_is_complete(URL)


def test_best_checkpoint_is_kept():
    keep = checkpoints.KeepBest()
    for step, loss in ((1, 0.5), (2, 0.7), (3, 0.8)):
        prefix = checkpoints.save(
            URL, step, VALUES, retention=checkpoints.Retention(max_to_keep=1)
        )
        retention.note(keep, URL, prefix, {"loss": loss})
    assert checkpoints.best(URL) == f"{URL}/model.ckpt-1"
    assert names() == [
        "best_checkpoint.json",
        "checkpoint",
        "model.ckpt-1.h5",
        "model.ckpt-3.h5",
    ]


def test_error_for_a_missing_checkpoint_lists_existing_ones():
    checkpoints.save(URL, 20, VALUES)
    with pytest.raises(ValueError, match=f"{URL}/model.ckpt-30.*model.ckpt-20"):
        checkpoints.read(f"{URL}/model.ckpt-30")
    with pytest.raises(ValueError, match=f"{URL}/model.ckpt-30.*model.ckpt-20"):
        kte.load_checkpoint(f"{URL}/model.ckpt-30")
    with pytest.raises(ValueError, match="'memory://no/run' does not exist"):
        kte.load_checkpoint("memory://no/run/model.ckpt-30")


def test_incomplete_file_is_not_uploaded(memory):
    with pytest.raises(KeyError):
        with commit.replacing(f"{URL}/file") as partial:
            pathlib.Path(partial).write_text("half")
            raise KeyError
    assert not memory.store
    assert not os.path.exists(partial)


def save_tf1(directory):
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        for name, value in VALUES.items():
            v1.get_variable(name, initializer=tf.constant(value))
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(
            session, os.path.join(directory, "model.ckpt"), global_step=7
        )
    return URL


def dense_model():
    dense = keras.layers.Dense(1, name="dense")
    model = keras.Sequential([keras.Input((3,)), dense])
    dense.set_weights([KERNEL, BIAS])
    return model


def save_keras(directory):
    dense_model().save_weights(os.path.join(directory, "model.weights.h5"))
    return f"{URL}/model.weights.h5"


def save_archive(directory):
    dense_model().save(os.path.join(directory, "model.keras"))
    return f"{URL}/model.keras"


def save_own(directory):
    checkpoints.save(directory, 7, VALUES)
    return f"{URL}/model.ckpt-7"


SAVED = pytest.mark.parametrize("save", [save_tf1, save_keras, save_archive, save_own])


@SAVED
def test_checkpoints_of_other_libraries_are_read(save, tmp_path):
    url = save(str(tmp_path))
    upload(tmp_path)
    np.testing.assert_array_equal(kte.load_variable(url, "dense/kernel"), KERNEL)


def test_tensorflow_reader_works_after_its_local_copies_are_deleted(tmp_path):
    reader_url = save_tf1(str(tmp_path))
    upload(tmp_path)
    reader = kte.load_checkpoint(reader_url)
    transfers._KEPT.clear()
    np.testing.assert_array_equal(reader.get_tensor("dense/kernel"), KERNEL)


@SAVED
def test_training_starts_from_a_url(save, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    url = save(str(other))
    upload(other)
    estimator = estimator_of(model_fn_of(linear), tmp_path / "run", warm_start_from=url)
    predicted = next(estimator.predict(lambda params: X))
    np.testing.assert_allclose(predicted["y"], X[0] @ KERNEL + BIAS, rtol=1e-5)


def test_model_fn_starts_from_a_url(tmp_path):
    checkpoints.save(URL, 7, VALUES)
    base = model_fn_of(linear)

    def model_fn(features, labels, mode, params):
        spec = base(features, labels, mode, params)
        kte.init_from_checkpoint(URL, {"dense/": "dense/"})
        return spec

    estimator = estimator_of(model_fn, tmp_path)
    estimator.train(repeated(X, np.zeros_like(Y)), steps=1)
    assert not np.allclose(estimator.get_variable_value("dense/bias"), 0)
