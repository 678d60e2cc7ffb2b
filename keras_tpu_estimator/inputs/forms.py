"""Telling in which form an `input_fn` returned its data."""

import sys
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from keras_tpu_estimator.inputs.datasets import Dataset
from keras_tpu_estimator.inputs.form import Arrays
from keras_tpu_estimator.inputs.form import Form
from keras_tpu_estimator.inputs.streams import Stream


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
    if isinstance(value, list):
        _check_list(value)
    if isinstance(value, Mapping | tuple | list | str | bytes):
        return Arrays(value)
    if hasattr(value, "__iter__") and not hasattr(value, "dtype"):
        return Stream(value)
    return Arrays(value)


def _check_list(value: list[Any]) -> None:
    """A list of two is a pair, and must not look like two batches.

    Raises:
        ValueError: It does, or is no pair.
    """
    kinds = {_keys_of_batch(each) for each in value}
    if len(value) != 2 or (len(kinds) == 1 and None not in kinds):
        raise ValueError(
            "A list that `input_fn` returns should have length 2: features and "
            "labels. "
            f"Received a list of length {len(value)}"
            f"{' whose items look like batches' if len(kinds) == 1 else ''}. "
            "Return iter(batches) for batches one after the other, a tuple "
            "(features, labels) for one pair, and a dict for several features."
        )


def _keys_of_batch(value: Any) -> Any:
    """What two batches have in common; `None` for what is none by its looks."""
    if isinstance(value, Mapping):
        return frozenset(value)
    if isinstance(value, tuple) and len(value) == 2:
        return "pair"
    return None


def form_of_call(call: Callable[[], Any], number: int) -> Form:
    """The form of what a call returns, whichever it is of several."""
    del number
    return form_of(call())


def hide_gpus() -> None:
    """Keeps TensorFlow, if it is there, from the memory that JAX needs."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return
    try:
        tensorflow.config.set_visible_devices([], "GPU")
    except RuntimeError:
        # It has been initialised; then its devices are the user's choice.
        return
