"""Tests that searches for files in missing folders raise TensorFlow 1.15's errors."""

import pytest
import tensorflow.compat.v1 as tf

from keras_tpu_estimator.tf1 import command
from keras_tpu_estimator.tf1.shims.resolving import resolve

# The searches of TF1 programs, for a pattern.
SEARCHES = {
    "gfile": lambda pattern: resolve("gfile.Glob")(pattern),
    "io.gfile": lambda pattern: resolve("io.gfile.glob")(pattern),
    "file_io": lambda pattern: resolve("python.lib.io.file_io").get_matching_files(
        pattern
    ),
    "op": lambda pattern: _run(resolve("io.matching_files")(pattern)),
    "variable": lambda pattern: _run(resolve("train.match_filenames_once")(pattern)),
}


def _run(tensor):
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        return [name.decode() for name in session.run(tensor)]


@pytest.fixture(params=SEARCHES)
def search(request, graph):
    """Searches for files in one of the ways of TF1 programs."""
    del graph
    return SEARCHES[request.param]


@pytest.fixture
def graph():
    """The default graph of a test."""
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.mark.parametrize("pattern", ["missing/*.csv", "missing/part", "missing/a*/b"])
def test_missing_folder_is_an_error(search, tmp_path, pattern):
    with pytest.raises(tf.errors.NotFoundError) as caught:
        search(f"{tmp_path}/{pattern}")
    assert caught.value.message == f"{tmp_path}/missing; No such file or directory"


def test_missing_relative_folder_is_an_error(search, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert search("*.csv") == []
    with pytest.raises(tf.errors.NotFoundError, match="^missing; No such file"):
        search("missing/*.csv")


def test_missing_folder_of_one_of_several_patterns_is_an_error(search, tmp_path):
    (tmp_path / "data.csv").touch()
    assert search([f"{tmp_path}/*.csv"]) == [f"{tmp_path}/data.csv"]
    with pytest.raises(tf.errors.NotFoundError):
        search([f"{tmp_path}/*.csv", f"{tmp_path}/missing/*.csv"])


def test_file_in_place_of_a_folder_is_an_error(search, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(tf.errors.FailedPreconditionError, match="Not a directory"):
        search(f"{tmp_path}/file/*.csv")


@pytest.mark.parametrize("pattern", ["*.csv", "missing", "mis*/x", "[ab]/x", ""])
def test_existing_folder_without_files_is_no_error(search, tmp_path, pattern):
    assert search(pattern and f"{tmp_path}/{pattern}") == []


def test_computed_patterns_are_not_checked(tmp_path, graph):
    pattern = tf.placeholder(tf.string)
    files = resolve("io.matching_files")(pattern)
    with tf.Session(graph=graph) as session:
        assert not session.run(files, {pattern: f"{tmp_path}/missing/*"}).size


PROGRAM = """
import tensorflow as tf

def input_fn(params):
    return tf.data.Dataset.list_files("{folder}/*").repeat().batch(2)

def model_fn(features, labels, mode, params):
    raise SystemExit("The input was built.")

config = tf.contrib.tpu.RunConfig()
tf.contrib.tpu.TPUEstimator(
    model_fn, config=config, use_tpu=False, train_batch_size=2
).train(input_fn, steps=1)
"""


def test_missing_data_of_input_fn_end_a_script(tmp_path, monkeypatch):
    # The settings would remain for other tests.
    monkeypatch.setattr(command, "_behave_as_tf1", lambda: None)
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(folder=tmp_path / "missing"))
    with pytest.raises(tf.errors.NotFoundError, match="missing; No such file"):
        command.run(str(script))
    # Other code has TensorFlow's own function.
    with tf.Graph().as_default():
        tf.data.Dataset.list_files(f"{tmp_path}/missing/*")
