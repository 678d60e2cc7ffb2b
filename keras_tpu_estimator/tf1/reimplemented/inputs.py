"""The input functions of `tf.estimator.inputs`, from memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_tpu_estimator.base.common.shown import shown


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], Any]:
    """Makes an `input_fn` of arrays.

    The counterpart of `tf.estimator.inputs.numpy_input_fn`. The last batch may be
    smaller, and batches may contain rows of two epochs.

    Args:
        x: An array, or a dict of arrays with equal numbers of rows.
        y: Labels in the same form, or `None`. Defaults to `None`.
        batch_size: The number of rows in a batch. Defaults to 128.
        num_epochs: The number of repetitions, or `None` for no end. Defaults to 1.
        shuffle: Whether to shuffle rows. Required.
        queue_capacity: The number of rows in the shuffle buffer.
        num_threads: Accepted; has no effect.

    Returns:
        A function of no arguments that returns tensors.

    Raises:
        ValueError: `shuffle` is missing, the numbers of rows differ, `x` or `y` is
            empty, or they share keys.
        TypeError: `x` is neither an array nor a dict.

    Example:

    >>> input_fn = numpy_input_fn(np.arange(5), batch_size=2, shuffle=False)
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     session.run(input_fn())
    array([0, 1])
    """
    del num_threads
    if not isinstance(shuffle, bool):
        raise ValueError(
            f"`shuffle` must be True or False. Received: {shuffle!r}. Pass "
            "it, because it has no default."
        )
    _check_features(x, y)
    arrays = (x,) if y is None else (x, y)
    arrays = tf.nest.map_structure(np.asarray, arrays)
    rows = {len(array) for array in tf.nest.flatten(arrays)}
    if len(rows) != 1:
        raise ValueError(
            f"`x` and `y` must have the same number of rows. Received: {sorted(rows)}."
        )

    def input_fn() -> Any:
        data = tf.compat.v1.data.Dataset.from_tensor_slices(arrays)
        if shuffle:
            data = data.shuffle(queue_capacity)
        data = data.repeat(num_epochs).batch(batch_size)
        iterator = tf.compat.v1.data.make_one_shot_iterator(data)
        batch = iterator.get_next()
        return batch[0] if y is None else batch

    return input_fn


def _check_features(x: Any, y: Any) -> None:
    """Checks properties that would otherwise cause errors only in a `model_fn`."""
    if not isinstance(x, dict | np.ndarray):
        raise TypeError(
            "`x` must be an array or a dict of arrays. Received: "
            f"{shown(x)}. Convert it by np.asarray."
        )
    for name, given in (("x", x), ("y", y)):
        is_empty = isinstance(given, dict) and not given
        is_empty |= name == "x" and getattr(given, "size", 1) == 0
        if is_empty:
            raise ValueError(
                f"`{name}` must not be empty. Received: {shown(given)}. Pass "
                "at least one row, and None for no labels."
            )
    common = [key for key in x if key in y] if _are_dicts(x, y) else []
    if common:
        raise ValueError(
            "`x` and `y` must have different keys. Received in both: "
            f"{common}. Rename the labels."
        )


def _are_dicts(*values: Any) -> bool:
    return all(isinstance(value, dict) for value in values)


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
    target_column: str = "target",
) -> Callable[[], Any]:
    """Makes an `input_fn` of a Pandas `DataFrame`.

    The counterpart of `tf.estimator.inputs.pandas_input_fn`.

    Args:
        x: A `DataFrame`, whose columns become features by their names.
        y: Labels: a `Series` or a `DataFrame`, or `None`. Defaults to `None`.
        batch_size: As in `numpy_input_fn`.
        num_epochs: See there.
        shuffle: See there.
        queue_capacity: See there.
        num_threads: See there.
        target_column: Accepted; has no effect.

    Returns:
        A function of no arguments that returns tensors.

    Raises:
        ValueError: As in `numpy_input_fn`.
    """
    del target_column
    features = {name: x[name].to_numpy() for name in x.columns}
    labels = y
    if y is not None and hasattr(y, "columns"):
        labels = {name: y[name].to_numpy() for name in y.columns}
    return numpy_input_fn(
        features,
        labels,
        batch_size,
        num_epochs,
        shuffle,
        queue_capacity,
        num_threads,
    )
