"""The input functions of `tf.estimator.inputs`, from memory."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_tpu_estimator.base.common.shown import shortened, shown


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
    _check_shuffle(shuffle)
    _check_features(x, y)
    arrays = (x,) if y is None else (x, y)
    arrays = tf.nest.map_structure(np.asarray, arrays)
    rows = {len(array) for array in tf.nest.flatten(arrays)}
    if len(rows) != 1:
        raise ValueError(
            f"`x` and `y` must have the same number of rows. Received: {sorted(rows)}."
        )
    room = queue_capacity if shuffle else None
    return functools.partial(_batches, arrays, batch_size, num_epochs, room)


def _batches(
    arrays: tuple[Any, ...],
    batch_size: int,
    num_epochs: int | None,
    shuffled_rows: int | None,
) -> Any:
    """Returns the tensors of a batch: the features, or a pair of them and labels."""
    data = tf.compat.v1.data.Dataset.from_tensor_slices(arrays)
    if shuffled_rows is not None:
        data = data.shuffle(shuffled_rows)
    data = data.repeat(num_epochs).batch(batch_size)
    batch = tf.compat.v1.data.make_one_shot_iterator(data).get_next()
    return batch if len(arrays) == 2 else batch[0]


def _check_shuffle(shuffle: Any) -> None:
    if not isinstance(shuffle, bool):
        raise ValueError(
            f"`shuffle` must be True or False. Received: {shuffle!r}. Pass "
            "it, because it has no default."
        )


def _check_features(x: Any, y: Any) -> None:
    """Checks properties that would otherwise cause errors only in a `model_fn`."""
    if not isinstance(x, dict | np.ndarray):
        raise TypeError(
            "`x` must be an array or a dict of arrays. Received: "
            f"{shown(x)}. Convert it by np.asarray."
        )
    for name, part in (("x", x), ("y", y)):
        is_empty = isinstance(part, dict) and not part
        is_empty |= name == "x" and getattr(part, "size", 1) == 0
        if is_empty:
            raise ValueError(
                f"`{name}` must not be empty. Received: {shown(part)}. Pass "
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
    queue_capacity: int | None = 1000,
    num_threads: int = 1,
    target_column: str = "target",
) -> Callable[[], Any]:
    """Makes an `input_fn` of a Pandas `DataFrame`.

    The counterpart of `tf.estimator.inputs.pandas_input_fn`.

    Args:
        x: A `DataFrame`, whose columns become features by their names.
        y: Labels: a `Series` or a `DataFrame` with the index of `x`, or `None`.
            Defaults to `None`.
        batch_size: As in `numpy_input_fn`.
        num_epochs: See there.
        shuffle: See there.
        queue_capacity: See there; `None` is four times the rows of `x`.
        num_threads: See there.
        target_column: A name that no column of `x` has, while labels have it.
            Defaults to 'target'.

    Returns:
        A function of no arguments that returns tensors.

    Raises:
        ValueError: `shuffle` is missing, `x` is empty or has a column
            `target_column`, or the indexes of `x` and `y` differ.
        TypeError: `target_column` is not a string.
    """
    del num_threads
    _check_shuffle(shuffle)
    if not isinstance(target_column, str):
        raise TypeError(
            f"`target_column` must be a string. Received: {shown(target_column)}. "
            "Pass a name that `x` does not have; a DataFrame `y` keeps its names."
        )
    if not len(x) or not len(x.columns):
        raise ValueError(
            f"`x` must not be empty. Received: {len(x)} rows and {len(x.columns)} "
            "columns. Pass at least one of each."
        )
    arrays: tuple[Any, ...] = (_columns(x),)
    if y is not None:
        _check_labels(x, y, target_column)
        arrays += (_columns(y) if hasattr(y, "columns") else np.array(y),)
    room = queue_capacity or 4 * len(x)
    return functools.partial(
        _batches, arrays, batch_size, num_epochs, room if shuffle else None
    )


def _columns(frame: Any) -> dict[Any, Any]:
    """Returns copies of the columns of a `DataFrame` by name."""
    return {name: np.array(frame[name]) for name in frame.columns}


def _check_labels(x: Any, y: Any, target_column: str) -> None:
    """Checks that labels belong to the rows of `x`, and that their name is free."""
    if target_column in x.columns:
        raise ValueError(
            "`target_column` must differ from the columns of `x`. Received: "
            f"{target_column!r}. Rename one of them."
        )
    if not np.array_equal(x.index, y.index):
        raise ValueError(
            "`x` and `y` must have the same index. Received: "
            f"{shortened(repr(x.index))} and {shortened(repr(y.index))}. Align them, "
            "such as by y.loc[x.index], or call reset_index(drop=True) on both if "
            "their rows have the same order."
        )
