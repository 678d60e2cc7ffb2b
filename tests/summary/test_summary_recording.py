"""Tests whether, where and at which step summaries are written."""

import contextlib
import pathlib
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import keras_tpu_estimator as kte
from keras_tpu_estimator import summary
from keras_tpu_estimator.files.summary import recording
from keras_tpu_estimator.summary import experimental


def scalars(logdir: pathlib.Path, tag: str = "x") -> list[tuple[int, float]]:
    """Steps and values of the scalars under a tag."""
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.util import tensor_util

    accumulator = event_accumulator.EventAccumulator(str(logdir)).Reload()
    return [
        (event.step, float(tensor_util.make_ndarray(event.tensor_proto)))
        for event in accumulator.Tensors(tag)
    ]


def test_nothing_is_recorded_without_a_writer() -> None:
    assert summary.scalar("x", 1, step=1) is False
    assert summary.scalar("x", 1) is False


def test_innermost_writer_is_the_default(tmp_path: pathlib.Path) -> None:
    one = summary.create_file_writer(tmp_path / "one")
    other = summary.create_file_writer(tmp_path / "other")
    with one.as_default(step=10) as entered:
        assert entered is one
        summary.scalar("x", 1)
        with other.as_default(step=20):
            summary.scalar("x", 2)
            with one.as_default():
                summary.scalar("x", 3)
            summary.scalar("x", 4, step=30)
        summary.scalar("x", 5)
    assert summary.scalar("x", 6, step=1) is False
    assert scalars(tmp_path / "one") == [(10, 1), (20, 3), (10, 5)]
    assert scalars(tmp_path / "other") == [(20, 2), (30, 4)]


def test_error_also_ends_the_default(tmp_path: pathlib.Path) -> None:
    writer = summary.create_file_writer(tmp_path)
    with pytest.raises(KeyError):
        with writer.as_default(step=1), summary.record_if(False):
            raise KeyError
    assert experimental.get_step() is None
    assert summary.scalar("x", 1, step=1) is False
    with writer.as_default():
        assert summary.scalar("x", 1, step=1) is True


@pytest.mark.parametrize(
    ("condition", "recorded"),
    [
        (True, True),
        (False, False),
        (None, True),
        (np.bool_(False), False),
        (np.array([True]), True),
        (lambda: False, False),
        (lambda: np.bool_(True), True),
    ],
)
def test_record_if(tmp_path: pathlib.Path, condition: Any, recorded: bool) -> None:
    with summary.create_file_writer(tmp_path / "run").as_default(step=1):
        with summary.record_if(condition):
            assert summary.scalar("x", 1) is recorded
        assert summary.scalar("after", 1) is True


def test_innermost_condition_decides(tmp_path: pathlib.Path) -> None:
    with (
        summary.record_if(False),
        summary.create_file_writer(tmp_path).as_default(step=1),
    ):
        assert summary.scalar("x", 1) is False
        with summary.record_if(True):
            assert summary.scalar("x", 2) is True
        assert summary.scalar("x", 3) is False
    assert scalars(tmp_path) == [(1, 2)]


def test_function_is_called_each_time(tmp_path: pathlib.Path) -> None:
    step = 0
    with (
        summary.create_file_writer(tmp_path).as_default(),
        summary.record_if(lambda: step % 3 == 0),
    ):
        for step in range(7):
            summary.scalar("x", step, step=step)
    assert scalars(tmp_path) == [(0, 0), (3, 3), (6, 6)]


@pytest.mark.parametrize("step", [5, np.int64(5), np.array([5], np.int32)])
def test_steps_may_be_arrays(tmp_path: pathlib.Path, step: Any) -> None:
    with summary.create_file_writer(tmp_path).as_default():
        summary.scalar("x", 1, step=step)
    assert scalars(tmp_path) == [(5, 1)]


@pytest.mark.parametrize("step", [2.5, np.array([1, 1]), "1"])
def test_step_must_be_one_integer(tmp_path: pathlib.Path, step: Any) -> None:
    with summary.create_file_writer(tmp_path).as_default():
        with pytest.raises(ValueError, match=r"one integer.*take step\[0\]"):
            summary.scalar("x", 1, step=step)


def test_a_summary_needs_a_step(tmp_path: pathlib.Path) -> None:
    with summary.create_file_writer(tmp_path).as_default():
        with pytest.raises(ValueError, match="'x' must have a step. .*Pass `step`"):
            summary.scalar("x", 1)
        with summary.record_if(False):
            assert summary.scalar("x", 1) is False


def test_set_step(tmp_path: pathlib.Path) -> None:
    with summary.create_file_writer(tmp_path).as_default():
        experimental.set_step(7)
        summary.scalar("x", 1)
        assert experimental.get_step() == 7
    with summary.create_file_writer(tmp_path).as_default(step=8):
        assert experimental.get_step() == 8
    # As in TensorFlow, the step is kept after the writer's block.
    assert experimental.get_step() == 7
    experimental.set_step(None)
    assert scalars(tmp_path) == [(7, 1)]


def test_step_of_a_host_call_ends_with_the_call() -> None:
    experimental.set_step(2)
    with recording.host_calls():
        experimental.set_step(3)
        assert experimental.get_step() == 3
    assert experimental.get_step() == 2
    experimental.set_step(None)


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_host_calls_flush_once_at_their_end(
    tmp_path: pathlib.Path, error: type[Exception] | None
) -> None:
    writer = summary.create_file_writer(tmp_path)
    with (
        contextlib.suppress(ZeroDivisionError),
        recording.host_calls(),
    ):
        for step in (1, 2):
            with writer.as_default(step=step):
                summary.scalar("x", step)
        (file,) = tmp_path.iterdir()
        size = file.stat().st_size
        if error:
            raise error
    assert file.stat().st_size > size
    assert scalars(tmp_path) == [(1, 1), (2, 2)]


def test_other_threads_have_their_own_defaults(tmp_path: pathlib.Path) -> None:
    recorded = []
    thread = threading.Thread(target=lambda: recorded.append(summary.scalar("x", 1)))
    with summary.create_file_writer(tmp_path).as_default(step=1):
        thread.start()
        thread.join()
    assert recorded == [False]


def test_end_of_the_block_flushes(tmp_path: pathlib.Path) -> None:
    writer = summary.create_file_writer(tmp_path)
    with writer.as_default(step=1):
        summary.scalar("x", 1)
        (path,) = tmp_path.iterdir()
        size = path.stat().st_size
        writer.flush()
        flushed = path.stat().st_size
        summary.scalar("x", 2)
    assert size < flushed < path.stat().st_size


def test_writers_of_a_directory_share_a_file(tmp_path: pathlib.Path) -> None:
    for step in range(5):
        with summary.create_file_writer(str(tmp_path)).as_default():
            summary.scalar("x", step, step=step)
    kte.summary.EventWriter.for_dir(tmp_path).scalars({"loss": 1}, step=5)
    kte.summary.EventWriter.for_dir(tmp_path).flush()
    assert len(list(tmp_path.iterdir())) == 1
    assert scalars(tmp_path) == [(step, step) for step in range(5)]


def test_settings_of_a_writer(tmp_path: pathlib.Path) -> None:
    writer = summary.create_file_writer(
        tmp_path, max_queue=2, flush_millis=10**7, filename_suffix=".train"
    )
    with writer.as_default():
        sizes = []
        for step in range(4):
            summary.scalar("x", 1, step=step)
            (path,) = tmp_path.iterdir()
            sizes.append(path.stat().st_size)
    assert path.name.endswith(".train")
    assert sizes[0] == sizes[1] < sizes[2] == sizes[3] < path.stat().st_size
    with summary.create_file_writer(tmp_path, flush_millis=0).as_default():
        summary.scalar("x", 1, step=4)
        (other,) = {*tmp_path.iterdir()} - {path}
        assert other.stat().st_size > sizes[0]


def test_closed_writer_is_refused(tmp_path: pathlib.Path) -> None:
    writer = summary.create_file_writer(tmp_path)
    with writer.as_default(step=1):
        summary.scalar("x", 1)
    writer.close()
    writer.close()
    writer.flush()
    with pytest.raises(RuntimeError, match="must be open. .*Make another"):
        with writer.as_default():
            pass
    with summary.create_file_writer(tmp_path).as_default(step=2):
        summary.scalar("x", 2)
    assert scalars(tmp_path) == [(1, 1), (2, 2)]


def test_writer_needs_a_directory() -> None:
    with pytest.raises(ValueError, match="path of a directory. Received: None"):
        summary.create_file_writer(None)


_WITHOUT_TENSORFLOW = """
import sys
import numpy as np
from keras_tpu_estimator import summary

with summary.create_file_writer(sys.argv[1]).as_default(step=1):
    summary.scalar("x", 1)
    summary.histogram("b", [1, 2])
    summary.image("c", np.ones((1, 2, 2, 3)))
    summary.text("d", "t")
    summary.audio("e", np.ones((1, 9, 1)), 8)
assert "tensorflow" not in sys.modules
"""


@pytest.mark.usefixtures("forked_programs")
def test_tensorflow_is_not_imported(tmp_path: pathlib.Path) -> None:
    subprocess.run(
        [sys.executable, "-c", _WITHOUT_TENSORFLOW, str(tmp_path)], check=True
    )
    assert scalars(tmp_path) == [(1, 1)]
