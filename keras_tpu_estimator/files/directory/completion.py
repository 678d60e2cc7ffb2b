"""The mark that the training in a directory has come to its end.

Other processes, which see nothing but the directory, know by it that no
checkpoint will follow.
"""

import contextlib
import json
import os

from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.ground.base.types import PathLike
from keras_tpu_estimator.ground.storage import paths

FILE_NAME = "training_complete.json"


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
    return paths.is_file(os.path.join(os.fsdecode(model_dir), FILE_NAME))


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
    path = os.path.join(model_dir, FILE_NAME)
    with commit.replacing(path) as partial:
        with open(partial, "w", encoding="utf-8") as file:
            json.dump({"global_step": global_step}, file)


def unmark(model_dir: PathLike) -> None:
    """Takes the mark away, for training goes on.

    Args:
        model_dir: The directory, marked or not.

    Example:

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> mark_complete(directory, 20)
    >>> unmark(directory)
    >>> training_is_complete(directory)
    False
    """
    with contextlib.suppress(FileNotFoundError):
        paths.remove(os.path.join(os.fsdecode(model_dir), FILE_NAME))
