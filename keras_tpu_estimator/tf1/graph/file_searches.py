"""The folders of searches for files, which TensorFlow 1 required to exist."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from keras_tpu_estimator.base.upstream.tensorflow_names import MATCHING_FILES

_WILDCARD = re.compile(r"[*?\[\\]")


@contextlib.contextmanager
def required_folders() -> Iterator[None]:
    """Makes searches in graphs require folders, also `tf.data.Dataset.list_files`."""

    def search(function: Callable[..., Any], pattern: Any, name: Any = None) -> Any:
        require_folders(pattern)
        return function(pattern, name)

    with MATCHING_FILES.block(search):
        yield


def require_folders(pattern: Any) -> None:
    """Checks the folders of a pattern whose value is known when the graph is built."""
    import tensorflow as tf

    value = tf.get_static_value(pattern) if tf.is_tensor(pattern) else pattern
    for one in [] if value is None else np.ravel(value):
        require_folder(os.fsdecode(one))


def require_folder(pattern: str) -> None:
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


def _error(error: OSError) -> Any:
    import tensorflow as tf

    if isinstance(error, NotADirectoryError):
        return tf.errors.FailedPreconditionError
    if isinstance(error, FileNotFoundError):
        return tf.errors.NotFoundError
    return tf.errors.UnknownError
