"""The status of training in a directory: a lock while it runs, and a marker.

Other processes, which see only the directory, learn from the marker that no
more checkpoints will follow.
"""

import contextlib
import json
import os
from collections.abc import Iterator

from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.base.storage.paths import is_url
from keras_tpu_estimator.files.atomic import commit, file_locks


@contextlib.contextmanager
def only_training(directory: PathLike) -> Iterator[None]:
    """Prevents a second training in a directory during a `with` block.

    The operating system holds the lock, and releases it when the process ends
    in any way. Forked processes do not hold it. There is no lock for a URL or
    on a file system without locks. The directory is created, and removed again
    if it stays empty.

    Raises:
        RuntimeError: Another training on this machine uses the directory.

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
    """Yields whether no training uses a directory, and keeps new ones out.

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
            f"Another training writes into {os.fspath(directory)!r}. Only one "
            "training at a time may write into a directory, because their "
            "checkpoints would replace each other. Wait until it ends, or "
            "choose another `model_dir`."
        ) from error


COMPLETE_FILE = "training_complete.json"


def training_is_complete(model_dir: PathLike) -> bool:
    """Returns whether `train_and_evaluate` has finished in a directory.

    Args:
        model_dir: The directory, which need not exist.

    Returns:
        A `bool`, which is false again as soon as training continues.

    Example:

    >>> import tempfile
    >>> import keras_tpu_estimator as kte
    >>> kte.checkpoints.training_is_complete(tempfile.mkdtemp())
    False
    """
    return paths.is_file(os.path.join(os.fsdecode(model_dir), COMPLETE_FILE))


def mark_complete(model_dir: PathLike, global_step: int) -> None:
    """Marks the training in a directory as complete.

    Args:
        global_step: The last step, for readers of the file.

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
    """Removes the marker, because training continues.

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
