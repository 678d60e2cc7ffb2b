"""Search for the latest checkpoint of a directory, once or repeatedly."""

import functools
import logging
import os
import time
from collections.abc import Callable, Iterator

from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.files.formats import registry

_SECONDS_BETWEEN_LOOKS = 1.0

_logger = logging.getLogger(__name__)


def latest_intact(
    model_dir: PathLike,
    is_intact: Callable[[str], bool] = registry.is_intact,
) -> str | None:
    """Finds the latest intact checkpoint of a directory, by its checksums.

    If newer checkpoints are corrupt, a warning names them, once per process. A
    checkpoint is read only if this process has neither written nor checked it.

    Args:
        model_dir: A directory, which need not exist.
        is_intact: Returns whether the checkpoint at a prefix is intact.
            Defaults to a function that reads all of it.

    Returns:
        A prefix such as '<model_dir>/model.ckpt-20', or None if there is no
        checkpoint.

    Raises:
        ValueError: All checkpoints are corrupt, or the `checkpoint` file is
            unreadable.

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
        # A training has saved newer ones and removed it.
        return latest_intact(model_dir, is_intact)
    existing = filter(location.exists, location.listed(model_dir))
    intact = next(filter(is_intact, existing), None)
    if intact is None:
        raise ValueError(
            f"All checkpoints of {model_dir!r} are truncated or corrupt. The "
            f"latest is {location.main_file(newest)!r}. Copy them again if "
            "they are copies. Otherwise delete them, with the 'checkpoint' "
            "file, to train from the beginning."
        )
    _warn(newest, intact)
    return intact


def checkpoints_iterator(
    checkpoint_dir: PathLike,
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Iterator[str]:
    """Yields each new latest checkpoint of a directory as it appears.

    It looks once a second while the caller waits for the next one, so it skips
    a checkpoint if a newer one appears meanwhile.

    Args:
        checkpoint_dir: The directory, which may appear later.
        min_interval_secs: The minimum number of seconds between checkpoints.
            Defaults to 0.
        timeout: The number of seconds to wait for a new one. Defaults to None,
            for no limit.
        timeout_fn: Called without arguments after each `timeout`. If it returns
            true, the iteration ends; otherwise it waits again. Defaults to
            None, which ends at the first timeout.

    Yields:
        Prefixes such as '<checkpoint_dir>/model.ckpt-20'.

    Raises:
        ValueError: The state file is unreadable.

    Example:

    >>> import tempfile
    >>> import keras_tpu_estimator as kte
    >>> directory = tempfile.mkdtemp()
    >>> prefix = kte.checkpoints.save(directory, 20, {})
    >>> list(kte.checkpoints_iterator(directory, timeout=0)) == [prefix]
    True

    Reference: `tf.train.checkpoints_iterator`.
    """
    last = None
    while True:
        new = _wait_for_new(checkpoint_dir, last, timeout)
        if new is None:
            if timeout_fn is None or timeout_fn():
                _logger.info(
                    "No new checkpoint appeared in %s seconds. The iteration ends.",
                    timeout,
                )
                return
            continue
        began = time.monotonic()
        last = new
        yield new
        time.sleep(max(0.0, began + min_interval_secs - time.monotonic()))


def _wait_for_new(
    checkpoint_dir: PathLike,
    last: str | None,
    timeout: float | None,
) -> str | None:
    """Waits for a checkpoint other than the last one, or for the timeout."""
    remaining_secs = float("inf") if timeout is None else timeout
    deadline = time.monotonic() + remaining_secs
    while True:
        latest = location.latest_checkpoint(checkpoint_dir)
        if latest is not None and latest != last:
            return latest
        remaining_secs = deadline - time.monotonic()
        if remaining_secs <= 0:
            return None
        time.sleep(min(_SECONDS_BETWEEN_LOOKS, remaining_secs))


@functools.lru_cache
def _warn(corrupt: str, used: str) -> None:
    _logger.warning(
        "The latest checkpoint %r is truncated or corrupt. Using %r instead, "
        "the newest intact one. Delete the corrupt one, or copy it again if "
        "it is a copy.",
        location.main_file(corrupt),
        used,
    )
