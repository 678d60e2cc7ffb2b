"""Tests that numbers are read from event files, including corrupt ones."""

import struct
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf  # noqa: TID253 - writes its own event files

import keras_tpu_estimator as kte
from keras_tpu_estimator.files.summary.event_file import framed, read_scalars


@pytest.fixture
def path(tmp_path):
    """An event file with two steps, the second with two scalars."""
    with kte.summary.EventWriter(str(tmp_path)) as writer:
        writer.metrics({"loss": 0.5}, step=1)
        writer.metrics({"loss": 0.25, "mae": 2, "m": np.ones((2, 2))}, step=2)
        writer.text("note", "no number", step=3)
    (path,) = tmp_path.iterdir()
    return path


def test_only_scalars_are_read(path):
    expected = {1: {"loss": 0.5}, 2: {"loss": 0.25, "mae": 2.0}}
    assert read_scalars([path]) == expected


def test_files_of_tensorflow_are_read(tmp_path):
    with tf.Graph().as_default():
        writer = tf.compat.v1.summary.FileWriter(str(tmp_path))
        summary = tf.compat.v1.Summary()
        summary.value.add(tag="loss", simple_value=0.5)
        writer.add_summary(summary, 7)
        writer.close()
    assert read_scalars(tmp_path.iterdir()) == {7: {"loss": 0.5}}


def damaged(content, kind):
    """The content of a file with a corrupt third record."""
    starts, at = [], 0
    while at < len(content):
        starts.append(at)
        at += 16 + int.from_bytes(content[at : at + 8], "little")
    start = starts[2]
    if kind == "length":
        return content[:start] + b"\xff" + content[start + 1 :]
    if kind == "number":
        return content.replace(struct.pack("<f", 0.25), struct.pack("<f", 8))
    if kind == "event":
        return content[:start] + framed([b"\xff" * 9])
    return content[: start + kind]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (4, "its length is wrong or truncated"),
        (10, "its length is wrong or truncated"),
        (12, "its data are wrong or truncated"),
        (20, "its data are wrong or truncated"),
        ("length", "its length is wrong or truncated"),
        ("number", "its data are wrong or truncated"),
        ("event", "Error parsing message"),
    ],
)
def test_corrupt_file_is_read_up_to_the_corruption(path, kind, reason, caplog):
    path.write_bytes(damaged(path.read_bytes(), kind))
    assert read_scalars([path]) == {1: {"loss": 0.5}}
    assert "read up to a corrupt event" in caplog.text
    assert reason in caplog.text


def test_appended_events_are_read(tmp_path):
    writer = kte.summary.EventWriter(str(tmp_path))
    for step in (1, 2):
        writer.metrics({"loss": 0.5 * step}, step)
        writer.flush()
        read = read_scalars(tmp_path.iterdir())
        assert list(read) == list(range(1, step + 1))
        # The caller owns the results.
        read[1]["loss"] = -1.0
    assert read_scalars(tmp_path.iterdir())[1] == {"loss": 0.5}
    writer.close()


@pytest.mark.usefixtures("forked_programs")
def test_reading_needs_no_tensorflow(path):
    code = (
        "import sys\n"
        "from keras_tpu_estimator.files.summary.event_file "
        "import read_scalars\n"
        f"print(len(read_scalars([{str(path)!r}])))\n"
        "print('tensorflow' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "2\nFalse\n", done.stderr
