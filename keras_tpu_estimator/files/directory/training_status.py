"""One training at a time in a directory."""

import contextlib
import json
import os
from collections.abc import Iterator

from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.files.atomic import file_locks
from keras_tpu_estimator.ground.base.types import PathLike
from keras_tpu_estimator.ground.storage import paths
from keras_tpu_estimator.ground.storage.urls import is_url


@contextlib.contextmanager
def only_training(directory: PathLike) -> Iterator[None]:
    """Refuses a second training in a directory for the time of a `with` block.

    The operating system keeps the lock, and frees it when the process ends, in
    whatever way; processes that it forked do not hold it. Where a file system
    knows no locks there is none, and there is none at a URL.

    Args:
        directory: The directory, or its URL. It is made, and stays if it does
            not stay empty.

    Raises:
        RuntimeError: Another training has the directory, in this process or in
            another one of this machine.

    Example:

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> with only_training(directory):
    ...     with only_training(directory):
    ...         pass
    Traceback (most recent call last):
    ...
    RuntimeError: Another training writes into ...
    """
    if is_url(directory):
        yield
        return
    is_new = not os.path.isdir(directory)
    os.makedirs(directory, exist_ok=True)
    descriptor = file_locks.opened(directory)
    try:
        _lock(descriptor, directory)
        yield
    finally:
        file_locks.close(descriptor)
        if is_new:
            with contextlib.suppress(OSError):
                os.rmdir(directory)


@contextlib.contextmanager
def if_no_training(directory: PathLike) -> Iterator[bool]:
    """Keeps trainings out of a directory, if none is there.

    Args:
        directory: An existing directory of this machine.

    Yields:
        Whether none is, which stays so in the `with` block.

    Example:

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> with only_training(directory), if_no_training(directory) as is_free:
    ...     is_free
    False
    """
    descriptor = file_locks.opened(directory)
    try:
        file_locks.take(descriptor)
        is_free = True
    except file_locks.TakenError:
        is_free = False
    try:
        yield is_free
    finally:
        file_locks.close(descriptor)


def _lock(descriptor: int, directory: PathLike) -> None:
    try:
        file_locks.take(descriptor)
    except file_locks.TakenError as error:
        raise RuntimeError(
            f"Another training writes into {os.fspath(directory)!r}. Expected "
            "one at a time: their checkpoints would replace each other. Wait "
            "for its end, or choose another `model_dir`."
        ) from error


COMPLETE_FILE = "training_complete.json"


def training_is_complete(model_dir: PathLike) -> bool:
    """Whether `train_and_evaluate` has ended in a directory.

    Args:
        model_dir: The directory, which need not exist.

    Returns:
        A `bool`; false again as soon as training goes on.

    Example:

    >>> import tempfile
    >>> import keras_tpu_estimator as kte
    >>> kte.checkpoints.training_is_complete(tempfile.mkdtemp())
    False
    """
    return paths.is_file(os.path.join(os.fsdecode(model_dir), COMPLETE_FILE))


def mark_complete(model_dir: PathLike, global_step: int) -> None:
    """Marks the training in a directory as ended.

    Args:
        model_dir: The directory, made if need be.
        global_step: The step that training came to, for who reads the file.

    Example:

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> mark_complete(directory, 20)
    >>> training_is_complete(directory)
    True
    """
    model_dir = os.fsdecode(model_dir)
    paths.make_directory(model_dir)
    path = os.path.join(model_dir, COMPLETE_FILE)
    with commit.replacing(path) as partial:
        with open(partial, "w", encoding="utf-8") as file:
            json.dump({"global_step": global_step}, file)


def unmark_complete(model_dir: PathLike) -> None:
    """Takes the mark away, for training goes on.

    Args:
        model_dir: The directory, marked or not.

    Example:

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> mark_complete(directory, 20)
    >>> unmark_complete(directory)
    >>> training_is_complete(directory)
    False
    """
    with contextlib.suppress(FileNotFoundError):
        paths.remove(os.path.join(os.fsdecode(model_dir), COMPLETE_FILE))
