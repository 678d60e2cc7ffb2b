"""The latest checkpoint that is whole."""

import functools
import logging
import os
from collections.abc import Callable

from keras_tpu_estimator.files.checkpoints import formats
from keras_tpu_estimator.files.checkpoints import location
from keras_tpu_estimator.ground.base.types import PathLike

_logger = logging.getLogger(__name__)


def latest_intact(
    model_dir: PathLike,
    is_intact: Callable[[str], bool] = formats.is_intact,
) -> str | None:
    """Finds the latest checkpoint of a directory whose checksums are right.

    Where newer ones are damaged, a warning names them, once in a process. A
    checkpoint is read for this only if this process has neither written nor
    checked it.

    Args:
        model_dir: A directory, which need not exist.
        is_intact: Whether the checksums of the checkpoint of a prefix are
            right. Defaults to reading all of it.

    Returns:
        A prefix such as '<model_dir>/model.ckpt-20', or None if there is no
        checkpoint.

    Raises:
        ValueError: All are damaged, or the `checkpoint` file is unreadable.

    Example:

    >>> import os, tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> directory = tempfile.mkdtemp()
    >>> older = checkpoints.save(directory, 10, {})
    >>> newer = checkpoints.save(directory, 20, {})
    >>> os.truncate(newer + ".h5", 100)
    >>> checkpoints.latest_intact(directory) == older
    True
    """
    model_dir = os.fsdecode(model_dir)
    newest = location.latest(model_dir)
    if newest is None or is_intact(newest):
        return newest
    if not location.exists(newest):
        # A training has saved others since, and removed it.
        return latest_intact(model_dir, is_intact)
    others = filter(location.exists, location.listed(model_dir))
    found = next(filter(is_intact, others), None)
    if found is None:
        raise ValueError(
            f"All checkpoints of {model_dir!r} are truncated or damaged, the "
            f"latest being {location.main_file(newest)!r}. Copy them again if "
            "they are copies; otherwise delete the 'checkpoint' file there to "
            "start afresh."
        )
    _warn(newest, found)
    return found


@functools.lru_cache
def _warn(damaged: str, used: str) -> None:
    _logger.warning(
        "The latest checkpoint %r is truncated or damaged. Using %r instead, "
        "the newest that is whole. Delete the damaged one, or copy it again "
        "if it is a copy.",
        location.main_file(damaged),
        used,
    )
