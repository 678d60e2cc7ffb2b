"""The latest checkpoint of a directory, by its files."""

import os

from keras_tpu_estimator.base.common import registry as parts
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.files.directory import location, state_file


def latest_checkpoint(
    checkpoint_dir: PathLike,
    latest_filename: str | None = None,
) -> str | None:
    """Finds the latest checkpoint of a directory, in any format.

    If the latest checkpoint that the state file lists is missing, the newest
    existing one is returned, and a warning is logged.

    Args:
        checkpoint_dir: A directory, which need not exist.
        latest_filename: The name of the state file in it. Defaults to
            'checkpoint'.

    Returns:
        A prefix such as '<checkpoint_dir>/model.ckpt-20', or None if there is
        no checkpoint.

    Raises:
        ValueError: The state file is unreadable.

    Example:

    >>> import tempfile
    >>> import keras_tpu_estimator as kte
    >>> directory = tempfile.mkdtemp()
    >>> kte.latest_checkpoint(directory) is None
    True
    >>> prefix = kte.checkpoints.save(directory, 20, {})
    >>> kte.latest_checkpoint(directory) == prefix
    True

    Reference: `tf.train.latest_checkpoint`.
    """
    return location.newest(
        os.fsdecode(checkpoint_dir),
        lambda prefix: location.exists(prefix) or _is_of_tensorflow(prefix),
        latest_filename or state_file.FILE_NAME,
    )


def _is_of_tensorflow(prefix: str) -> bool:
    """Returns whether a prefix may be a checkpoint that TensorFlow has written."""
    return bool(parts.part("tensorflow files").exists(prefix))
