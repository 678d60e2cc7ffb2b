"""Saving of a checkpoint into a directory."""

import contextlib
import operator
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.files.directory import (
    location,
    save_files,
    state_file,
)
from keras_tpu_estimator.files.directory.layouts import Listing
from keras_tpu_estimator.files.directory.retention import Retention, best
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.files.directory.state_file import CheckpointState, Saved
from keras_tpu_estimator.files.formats import registry as formats
from keras_tpu_estimator.files.formats.reader import GLOBAL_STEP
from keras_tpu_estimator.files.formats.shards import ShardedVariable


def save(
    model_dir: PathLike,
    step: int,
    variables: Mapping[str, npt.ArrayLike],
    *,
    retention: Retention = Retention(),  # noqa: B008, it is frozen
    basename: str = location.BASENAME,
    now: float | None = None,
    format_name: str = formats.HDF5,
) -> str:
    """Saves variables as '<model_dir>/model.ckpt-<step>.h5'.

    The file is written under another name and renamed once it is on the disk.
    Then the `checkpoint` file is replaced in the same way, and older
    checkpoints are deleted. If the process is killed at any moment, the latest
    checkpoint is complete, and the next save removes the stale files. Only one
    process at a time may save. The best checkpoint, if `KeepBest` has found
    one, is not deleted.

    Args:
        model_dir: The directory, which is created if necessary.
        step: The global step, at least 0; also saved, as 'global_step'.
        variables: Arrays of numbers or booleans, by variable path.
        retention: The older checkpoints to keep. Defaults to the newest five.
        basename: The beginning of the file's name. Defaults to 'model.ckpt'.
        now: The time in seconds since 1970. Defaults to the clock.
        format_name: 'hdf5', 'orbax', 'tensorflow' for the files of
            TensorFlow's `Saver`, or the name of a registered format. Defaults
            to 'hdf5'.

    Returns:
        The prefix: the file's path without '.h5'.

    Raises:
        TypeError: A value is not an array of numbers, a name is not a string,
            or `step` is not an integer.
        ValueError: `step` is negative, a name is empty, the format is unknown,
            or the `checkpoint` file of the directory is unreadable. Nothing is
            written in these cases.
        ImportError: The package for the format is not installed.

    Example:

    >>> import tempfile
    >>> import numpy as np
    >>> from keras_tpu_estimator import checkpoints
    >>> directory = tempfile.mkdtemp()
    >>> prefix = checkpoints.save(directory, 20, {"dense/bias": np.zeros(2)})
    >>> checkpoints.read(prefix)
    {'dense/bias': array([0., 0.]), 'global_step': array(20)}
    """
    step = operator.index(step)
    if step < 0:
        raise ValueError(
            f"`step` must be zero or positive. Received: {step}. Pass 0 or more."
        )
    _check_names(variables)
    formats.check_can_write(format_name, os.fsdecode(model_dir))
    name = location.name_for(step, basename)
    saved = SaveFiles(os.path.join(os.fsdecode(model_dir), name))
    save_into(
        saved,
        step,
        variables,
        retention=retention,
        now=now,
        format_name=format_name,
    )
    return saved.prefix


def _check_names(variables: Mapping[str, npt.ArrayLike]) -> None:
    for name in variables:
        if not isinstance(name, str):
            raise TypeError(
                "The names of variables must be strings. Received: "
                f"{shown(name)}. Use a path, such as 'dense/kernel'."
            )
        if not name:
            raise ValueError(
                "The names of variables must not be empty. Received: ''. "
                "Use a path, such as 'dense/kernel'."
            )


def save_into(
    saved: SaveFiles,
    step: int,
    variables: Mapping[str, npt.ArrayLike | ShardedVariable],
    *,
    retention: Retention,
    now: float | None = None,
    format_name: str = formats.HDF5,
    receipts: Sequence[Any] = (),
) -> None:
    """Completes a save, some files of which may already exist.

    `variables` has arrays by path, and descriptions of the variables whose shards all
    processes have written, with their `receipts`.
    """
    model_dir, name = os.path.split(saved.prefix)
    paths.make_directory(model_dir)
    save_files.sweep_if_alone(model_dir, but=saved)
    before = state_file.load(model_dir)
    new = Saved(name, time.time() if now is None else now)
    listing = Listing.at(model_dir)
    with saved.undone_on_failure(listing):
        saved.mark_unlisted()
        formats.write(
            saved,
            {**variables, GLOBAL_STEP: np.int64(step)},
            format_name,
            receipts,
        )
        # This order ensures that a `checkpoint` file never lists a deleted
        # checkpoint.
        best_prefix = best(model_dir)
        best_name = best_prefix and os.path.basename(best_prefix)
        after, dropped = retention.split(_append(listing, before, new), best_name)
        going = [os.path.join(model_dir, old) for old in dropped]
        with contextlib.ExitStack() as marked:
            for old in filter(None, map(SaveFiles.at, going)):
                marked.enter_context(old.marked_unlisted())
            state_file.store(model_dir, after)
    saved.unmark()
    for prefix in going:
        save_files.remove(prefix)


def _append(
    listing: Listing, before: CheckpointState | None, new: Saved
) -> CheckpointState:
    """Returns the state with the new checkpoint and without missing ones."""
    saved = before.saved if before else ()
    last_preserved = before.last_preserved if before else None
    still_there = (
        old for old in saved if old.name != new.name and _is_own(listing, old.name)
    )
    return CheckpointState(
        latest=new.name,
        saved=(*still_there, new),
        last_preserved=new.time if last_preserved is None else last_preserved,
    )


def _is_own(listing: Listing, name: str) -> bool:
    # Users edit the state file to start from a checkpoint elsewhere. That
    # checkpoint must not be deleted.
    is_inside = not os.path.dirname(name)
    prefix = os.path.join(listing.directory, name)
    return is_inside and location.exists(prefix, listing.is_file)
