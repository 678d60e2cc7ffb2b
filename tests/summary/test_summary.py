import gc
import glob
import os
import resource
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

from keras_tpu_estimator.files.summary import event_file
from keras_tpu_estimator.summary import EventWriter


def _files(logdir):
    return sorted(glob.glob(os.path.join(logdir, "events.out.tfevents.*")))


def _accumulator(logdir):
    from tensorboard.backend.event_processing import event_accumulator

    accumulator = event_accumulator.EventAccumulator(str(logdir))
    accumulator.Reload()
    return accumulator


def _scalars(logdir, tag):
    return [(e.step, e.value) for e in _accumulator(logdir).Scalars(tag)]


def _tensor(logdir, tag):
    from tensorboard.util import tensor_util

    (event,) = _accumulator(logdir).Tensors(tag)
    return tensor_util.make_ndarray(event.tensor_proto)


@pytest.fixture
def logdir(tmp_path):
    return tmp_path / "run"


def test_scalars(logdir):
    import jax.numpy as jnp

    with EventWriter(logdir) as writer:
        writer.scalars({"loss": 0.5, "examples/sec": 800}, step=1)
        writer.scalars({"loss": np.float32(0.25)}, np.int64(2), wall_time=9.5)
        writer.scalars({"loss": jnp.asarray([0.125], "bfloat16")}, step=3)

    assert _scalars(logdir, "loss") == [(1, 0.5), (2, 0.25), (3, 0.125)]
    assert _scalars(logdir, "examples/sec") == [(1, 800.0)]
    assert _accumulator(logdir).Scalars("loss")[1].wall_time == 9.5


def test_dashboard_reads_the_scalars(logdir):
    from tensorboard.backend.event_processing import (
        plugin_event_multiplexer as multiplexer,
    )

    with EventWriter(logdir) as writer:
        writer.scalars({"loss": 0.5}, step=1)

    runs = multiplexer.EventMultiplexer().AddRunsFromDirectory(str(logdir))
    runs.Reload()
    assert list(runs.PluginRunToTagToContent("scalars")["."]) == ["loss"]


@pytest.mark.parametrize("value", [np.ones(2), "x", None, 1j, []])
def test_scalar_must_be_one_number(logdir, value):
    writer = EventWriter(logdir)
    with pytest.raises(ValueError, match="scalar 'loss' must be one number"):
        writer.scalars({"loss": value}, step=1)
    assert not logdir.exists()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scalars_may_be_nonfinite(logdir, value):
    with EventWriter(logdir) as writer:
        writer.scalars({"loss": value}, step=1)
    np.testing.assert_equal(_scalars(logdir, "loss"), [(1, value)])


@pytest.mark.parametrize(
    "number",
    [0.5, 2, True, np.float16(0.5), np.float64(0.5), np.int8(2), np.uint64(2)],
)
def test_numbers_in_metrics_are_scalars(logdir, number):
    with EventWriter(logdir) as writer:
        writer.metrics({"accuracy": number}, step=7)
    assert _scalars(logdir, "accuracy") == [(7, float(number))]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(3, np.int64),
        np.zeros((0, 2)),
        np.array([True, False]),
    ],
)
def test_arrays_in_metrics_are_tensors(logdir, array):
    with EventWriter(logdir) as writer:
        writer.metrics({"confusion": array}, step=7)

    written = _tensor(logdir, "confusion")
    np.testing.assert_array_equal(written, array)
    assert written.dtype == array.dtype


def test_bytes_in_metrics_are_a_summary(logdir):
    from tensorboard.compat.proto import summary_pb2

    image = summary_pb2.Summary.Image(height=1, width=1, encoded_image_string=b"png")
    values = [
        summary_pb2.Summary.Value(tag="any", image=image),
        summary_pb2.Summary.Value(tag="any", simple_value=0.5),
    ]
    summary = summary_pb2.Summary(value=values)

    with EventWriter(logdir) as writer:
        writer.metrics({"view": summary.SerializeToString()}, step=7)

    accumulator = _accumulator(logdir)
    (event,) = accumulator.Images("view/0")
    assert (event.step, event.encoded_image_string) == (7, b"png")
    assert _scalars(logdir, "view/1") == [(7, 0.5)]


def test_none_and_the_global_step_are_skipped_silently(logdir, caplog):
    with EventWriter(logdir) as writer:
        writer.metrics({"none": None, "global_step": 7, "auc": 0.5}, step=7)

    assert _accumulator(logdir).Tags()["scalars"] == ["auc"]
    assert not caplog.records


@pytest.mark.parametrize(
    "value",
    ["text", [1.0], 1j, b"\xff no summary", np.array([None]), object()],
)
def test_unsupported_values_are_logged_and_skipped(logdir, caplog, value):
    with EventWriter(logdir) as writer:
        writer.metrics({"odd": value, "auc": 0.5}, step=7)

    assert _accumulator(logdir).Tags()["scalars"] == ["auc"]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "'odd' is not written" in record.getMessage()


def test_text(logdir):
    from tensorboard.plugins.text import metadata

    with EventWriter(logdir) as writer:
        writer.text("checkpoint_path", "größe/model.ckpt-7", step=7)

    assert _tensor(logdir, "checkpoint_path").item() == ("größe/model.ckpt-7".encode())
    about = _accumulator(logdir).SummaryMetadata("checkpoint_path")
    assert about.plugin_data.plugin_name == metadata.PLUGIN_NAME


def test_no_file_is_made_without_events(logdir):
    with EventWriter(logdir) as writer:
        writer.flush()
        writer.scalars({}, step=1)
        writer.metrics({"global_step": 1}, step=1)
    writer.close()
    assert not logdir.exists()


def test_flush_makes_events_readable(logdir):
    writer = EventWriter(logdir, flush_secs=1000)
    writer.scalars({"loss": 0.5}, step=1)
    writer.flush()
    assert _scalars(logdir, "loss") == [(1, 0.5)]
    writer.scalars({"loss": 0.25}, step=2)
    assert len(_scalars(logdir, "loss")) == 1
    writer.close()
    assert len(_scalars(logdir, "loss")) == 2


def test_writes_flush_at_intervals(logdir):
    writer = EventWriter(logdir, flush_secs=0)
    writer.scalars({"loss": 0.5}, step=1)
    assert _scalars(logdir, "loss") == [(1, 0.5)]
    writer.close()


def test_each_writer_has_one_file(logdir):
    with EventWriter(logdir) as one, EventWriter(logdir) as other:
        for step in range(3):
            one.scalars({"one": 1}, step)
            other.scalars({"other": 2}, step)
    assert len(_files(logdir)) == 2


def test_closed_writer_can_continue(logdir):
    writer = EventWriter(logdir)
    writer.scalars({"loss": 0.5}, step=1)
    writer.close()
    writer.close()
    writer.scalars({"loss": 0.25}, step=2)
    writer.close()

    assert len(_files(logdir)) == 2
    assert _scalars(logdir, "loss") == [(1, 0.5), (2, 0.25)]


def test_deleted_directory_is_recreated(logdir):
    writer = EventWriter(logdir)
    writer.scalars({"loss": 0.5}, step=1)
    writer.flush()
    shutil.rmtree(logdir)
    writer.scalars({"loss": 0.25}, step=2)
    writer.close()
    assert _scalars(logdir, "loss") == [(2, 0.25)]


def test_pending_events_survive_a_deleted_directory(logdir):
    writer = EventWriter(logdir, flush_secs=1000)
    writer.scalars({"loss": 0.5}, step=1)
    shutil.rmtree(logdir)
    writer.close()
    assert _scalars(logdir, "loss") == [(1, 0.5)]


def test_forgotten_writer_still_writes(logdir):
    writer = EventWriter(logdir, flush_secs=1000)
    writer.scalars({"loss": 0.5}, step=1)
    del writer
    gc.collect()
    assert _scalars(logdir, "loss") == [(1, 0.5)]


def test_one_shared_writer_for_each_directory(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    writer = EventWriter.for_dir(tmp_path / "real")
    writer.close()

    assert EventWriter.for_dir(str(tmp_path / "link")) is writer
    assert EventWriter.for_dir(tmp_path / "real" / ".." / "real") is writer
    assert EventWriter.for_dir(tmp_path / "other") is not writer
    assert writer.logdir == os.path.realpath(tmp_path / "real")


def test_any_thread_may_write(logdir):
    with EventWriter(logdir) as writer:

        def write(tag):
            for step in range(100):
                writer.scalars({tag: step}, step)

        threads = [threading.Thread(target=write, args=(tag,)) for tag in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(_files(logdir)) == 1
    for tag in "abcd":
        assert _scalars(logdir, tag) == [(s, float(s)) for s in range(100)]


def test_full_disk_does_not_corrupt_files(logdir):
    writer = EventWriter(logdir)
    writer.scalars({"first": 0.5}, step=1)
    writer.flush()
    (path,) = _files(logdir)
    writer.scalars({"loss": 0.5}, step=2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path) + 9, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            writer.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert _scalars(logdir, "first") == [(1, 0.5)]
    writer.scalars({"loss": 0.25}, step=3)
    writer.close()
    assert _scalars(logdir, "loss") == [(2, 0.5), (3, 0.25)]
    assert _files(logdir) == [path]


def test_events_are_written_once(logdir, monkeypatch):
    """Pending events are written as one piece."""
    pieces = []
    framed = event_file.framed

    def counting(events):
        pieces.append(len(events))
        return framed(events)

    monkeypatch.setattr(event_file, "framed", counting)
    with EventWriter(logdir, flush_secs=1000) as writer:
        for step in range(100):
            writer.scalars({"loss": 0.5, "rate": 2}, step)
    assert pieces == [1, 100]


_IMPORTS = """
import sys
from keras_tpu_estimator import summary

assert "tensorboard" not in sys.modules, "tensorboard imported too early"
with summary.EventWriter(sys.argv[1]) as writer:
    writer.scalars({"loss": 0.5}, step=1)
    writer.text("checkpoint_path", "model.ckpt-1", step=1)
    import numpy as np
    writer.metrics({"confusion": np.ones((2, 2)), "image": b""}, step=1)
left_open = summary.EventWriter.for_dir(sys.argv[1])
left_open.scalars({"at_exit": 0.5}, step=1)
assert "tensorflow" not in sys.modules, "tensorflow imported"
"""


@pytest.mark.usefixtures("forked_programs")
def test_a_process_writes_without_tensorflow_until_it_exits(logdir):
    subprocess.run(
        [sys.executable, "-c", _IMPORTS, str(logdir)],
        check=True,
    )
    assert _scalars(logdir, "loss") == [(1, 0.5)]
    assert _scalars(logdir, "at_exit") == [(1, 0.5)]
