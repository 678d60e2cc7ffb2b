"""Events framed as TensorBoard's own writer frames them."""

import io

import numpy as np
import pytest

from keras_tpu_estimator.summary.event_records import framed


def framed_by_tensorboard(events):
    from tensorboard.summary.writer import record_writer

    stream = io.BytesIO()
    writer = record_writer.RecordWriter(stream)
    for event in events:
        writer.write(event)
    return stream.getvalue()


@pytest.mark.parametrize("number", [0, 1, 23, 24, 100])
@pytest.mark.parametrize("lengths", [(0,), (1,), (33,), (3, 80, 81)])
def test_records_are_those_of_tensorboard(number, lengths):
    rng = np.random.default_rng(number)
    events = [rng.bytes(lengths[i % len(lengths)]) for i in range(number)]
    assert framed(events) == framed_by_tensorboard(events)
