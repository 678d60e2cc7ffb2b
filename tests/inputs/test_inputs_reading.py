"""Tests reading the result of `input_fn` item by item."""

import threading

import tensorflow as tf  # noqa: TID253 - one of the kinds of input

from keras_tpu_estimator.engine.inputs.batch_source import SourceReader
from keras_tpu_estimator.engine.inputs.datasets import Dataset


def test_closing_does_not_wait_for_a_slow_dataset(monkeypatch):
    may_end, has_ended = threading.Event(), threading.Event()

    class SlowToEnd:
        def __iter__(self):
            return self

        def __next__(self):
            return 1

        def __del__(self):
            may_end.wait()
            has_ended.set()

    monkeypatch.setattr(Dataset, "items", lambda self, state=None: SlowToEnd())
    reading = SourceReader(Dataset(tf.data.Dataset.range(3)))
    assert next(reading) == 1
    reading.close()
    assert not has_ended.is_set()
    may_end.set()
    assert has_ended.wait(10)
    assert next(reading, None) is None
