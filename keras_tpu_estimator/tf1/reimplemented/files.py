"""Searches for files, which raise an error for a missing folder as in TensorFlow 1.

TensorFlow now finds no files there. A program whose data is missing would then train
without data.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from keras_tpu_estimator.base.upstream.tensorflow_names import MATCHING_FILES

_WILDCARD = re.compile(r"[*?\[\\]")


def get_matching_files(filename: str | Iterable[str]) -> list[str]:
    """Returns the files that match patterns.

    Args:
        filename: A pattern such as 'data/*.tfrecord', or several.

    Raises:
        tf.errors.NotFoundError: The folder before the first wildcard is missing. Create
            it, or correct the pattern.
        tf.errors.FailedPreconditionError: It is not a folder.

    Example:

    >>> get_matching_files("missing_folder/*.tfrecord")
    Traceback (most recent call last):
    tensorflow.python.framework.errors_impl.NotFoundError: missing_folder; No such ...
    """
    patterns = [filename] if isinstance(filename, str | bytes) else [*filename]
    for pattern in patterns:
        _require_folder(os.fsdecode(pattern))
    return tf.gfile.Glob(filename if isinstance(filename, str | bytes) else patterns)


def get_matching_files_v2(pattern: str | Iterable[str]) -> list[str]:
    """Returns the files that match patterns, as `get_matching_files` does.

    Args:
        pattern: A pattern such as 'data/*.tfrecord', or several.

    Example:

    >>> get_matching_files_v2("missing_*.tfrecord")
    []
    """
    return get_matching_files(pattern)


def matching_files(pattern: Any, name: str | None = None) -> Any:
    """Returns a tensor of the files that match patterns.

    Args:
        pattern: A string tensor. The folders of a constant must exist.
        name: The name of the operation. Defaults to "MatchingFiles".

    Raises:
        tf.errors.NotFoundError: The folder before the first wildcard is missing. Create
            it, or correct the pattern.

    Example:

    >>> with tf.Graph().as_default():
    ...     matching_files("missing_*.tfrecord").dtype
    tf.string
    """
    _require_folders(pattern)
    return tf.io.matching_files(pattern, name)


def match_filenames_once(pattern: Any, name: str | None = None) -> Any:
    """Returns a local variable of the files that match patterns.

    Args:
        pattern: A string tensor. The folders of a constant must exist.
        name: The name of the operations.

    Raises:
        tf.errors.NotFoundError: The folder before the first wildcard is missing. Create
            it, or correct the pattern.

    Example:

    >>> with tf.Graph().as_default():
    ...     match_filenames_once("missing_*.tfrecord").op.name
    'matching_filenames'
    """
    _require_folders(pattern)
    return tf.train.match_filenames_once(pattern, name)


@contextlib.contextmanager
def required_folders() -> Iterator[None]:
    """Makes searches in graphs require folders, also `tf.data.Dataset.list_files`."""

    def search(function: Callable[..., Any], pattern: Any, name: Any = None) -> Any:
        _require_folders(pattern)
        return function(pattern, name)

    with MATCHING_FILES.block(search):
        yield


def _require_folders(pattern: Any) -> None:
    """Checks the folders of a pattern whose value is known when the graph is built."""
    value = tf.get_static_value(pattern) if tf.is_tensor(pattern) else pattern
    for one in [] if value is None else np.ravel(value):
        _require_folder(os.fsdecode(one))


def _require_folder(pattern: str) -> None:
    """Raises TensorFlow 1's error if it could not list a pattern's local folder."""
    path = pattern.removeprefix("file://")
    if "://" in path:
        return
    folder = os.path.dirname(_WILDCARD.split(path, maxsplit=1)[0]) or "."
    try:
        os.scandir(folder).close()
    except PermissionError:
        pass
    except OSError as error:
        raise _error(error)(None, None, f"{folder}; {error.strerror}") from None


def _error(error: OSError) -> Callable[..., tf.errors.OpError]:
    if isinstance(error, NotADirectoryError):
        return tf.errors.FailedPreconditionError
    if isinstance(error, FileNotFoundError):
        return tf.errors.NotFoundError
    return tf.errors.UnknownError
