"""Tests that events are framed as by TensorBoard's own writer."""

import io

import numpy as np
import pytest

from keras_tpu_estimator.files.summary.event_file import framed, serialized


def framed_by_tensorboard(events):
    from tensorboard.summary.writer import record_writer

    stream = io.BytesIO()
    writer = record_writer.RecordWriter(stream)
    for event in events:
        writer.write(event)
    return stream.getvalue()


@pytest.mark.parametrize("number", [0, 1, 24])
@pytest.mark.parametrize("lengths", [(0,), (1,), (33,), (3, 80, 81), (1025,)])
def test_records_match_tensorboard(number, lengths):
    rng = np.random.default_rng(number)
    events = [rng.bytes(lengths[i % len(lengths)]) for i in range(number)]
    assert framed(events) == framed_by_tensorboard(events)


@pytest.mark.parametrize("step", [0, 1, 127, 128, 300, 2**40, 2**63 - 1, -1])
@pytest.mark.parametrize("tag", ["x", "x" * 200])
def test_events_match_protocol_buffers(step, tag):
    from tensorboard.compat.proto import event_pb2, summary_pb2

    value = summary_pb2.Summary.Value(tag=tag, simple_value=0.5)
    summary = summary_pb2.Summary(value=[value])
    event = event_pb2.Event(wall_time=1.25, step=step, summary=summary)
    ours = serialized(1.25, step, summary.SerializeToString())
    assert event_pb2.Event.FromString(ours) == event
