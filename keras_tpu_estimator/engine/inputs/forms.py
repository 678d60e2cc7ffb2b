"""Telling in which form an `input_fn` returned its data."""

import sys
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from keras_tpu_estimator.engine.inputs.datasets import Dataset
from keras_tpu_estimator.engine.inputs.form import Arrays
from keras_tpu_estimator.engine.inputs.form import Form
from keras_tpu_estimator.engine.inputs.streams import Stream


def form_of(value: Any) -> Form:
    """The form of what a call returned.

    Args:
        value: A dataset, an iterable of batches, or one batch.

    Example:

    >>> type(form_of(iter([1, 2]))).__name__, type(form_of([1, 2])).__name__
    ('Stream', 'Arrays')
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(value, tensorflow.data.Dataset):
        return Dataset(value)
    if isinstance(value, Mapping | tuple | list | str | bytes):
        return Arrays(value)
    if hasattr(value, "__iter__") and not hasattr(value, "dtype"):
        return Stream(value)
    return Arrays(value)


def form_of_call(call: Callable[[], Any], number: int) -> Form:
    """The form of what a call returns, whichever it is of several."""
    del number
    return form_of(call())
