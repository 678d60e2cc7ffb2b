"""Telling what kind of source an `input_fn` returned."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from keras_tpu_estimator.engine.inputs.batch_source import Arrays, BatchSource
from keras_tpu_estimator.engine.inputs.datasets import Dataset
from keras_tpu_estimator.engine.inputs.other_libraries import (
    check_gives_batches,
    let_workers_start,
)
from keras_tpu_estimator.engine.inputs.sparse import in_dense_tensors
from keras_tpu_estimator.engine.inputs.streams import Stream


def source_of(value: Any) -> BatchSource:
    """The source in what a call returned.

    Args:
        value: A dataset, an iterable of batches, or one batch.

    Raises:
        TypeError: It gives single examples.

    Example:

    >>> type(source_of(iter([1, 2]))).__name__, type(source_of([1, 2])).__name__
    ('Stream', 'Arrays')
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(value, tensorflow.data.Dataset):
        return Dataset(in_dense_tensors(value))
    check_gives_batches(value)
    let_workers_start(value)
    if isinstance(value, Mapping | tuple | list | str | bytes):
        return Arrays(value)
    if hasattr(value, "__iter__") and not hasattr(value, "dtype"):
        return Stream(value)
    return Arrays(value)


def source_of_call(call: Callable[[], Any], number: int) -> BatchSource:
    """The source in what a call returns, whichever it is of several."""
    del number
    return source_of(call())
