"""Searches for files, which raise an error for a missing folder as in TensorFlow 1.

TensorFlow now finds no files there. A program whose data is missing would then train
without data.
"""

import os
from collections.abc import Iterable
from typing import Any

import tensorflow.compat.v1 as tf

from keras_tpu_estimator.tf1.graph.file_searches import (
    require_folder,
    require_folders,
)


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
        require_folder(os.fsdecode(pattern))
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
    require_folders(pattern)
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
    require_folders(pattern)
    return tf.train.match_filenames_once(pattern, name)
