"""The files of Keras's callbacks, which only the chief may write."""

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras

from keras_tpu_estimator.base.hosts.agreement import is_chief, process_count

# The path attribute of each callback that writes files.
_PATHS: Mapping[type, str] = {
    keras.callbacks.CSVLogger: "filename",
    keras.callbacks.ModelCheckpoint: "filepath",
    keras.callbacks.TensorBoard: "log_dir",
}


def called_here(
    callbacks: Iterable[keras.callbacks.Callback],
) -> tuple[keras.callbacks.Callback, ...]:
    """Returns the callbacks that this process calls.

    `RemoteMonitor` would send each report once for every process.

    Raises:
        ValueError: There are several processes, and a callback would delete
            the files of the others.
    """
    backup = keras.callbacks.BackupAndRestore
    callbacks = tuple(callbacks)
    if process_count() > 1 and any(isinstance(c, backup) for c in callbacks):
        raise ValueError(
            "`BackupAndRestore` must not be used with several processes, "
            "because each would replace and delete the backup of the others. "
            "Leave it out: `train` saves checkpoints and resumes from the "
            "latest one."
        )
    if is_chief():
        return callbacks
    reports = keras.callbacks.RemoteMonitor
    return tuple(c for c in callbacks if not isinstance(c, reports))


@contextlib.contextmanager
def files_of_chief(
    callbacks: Iterable[keras.callbacks.Callback],
) -> Iterator[None]:
    """Redirects files to a temporary directory, except on the chief.

    All processes call each callback, because reading a sharded variable takes
    all of them.
    """
    if is_chief():
        yield
        return
    with (
        tempfile.TemporaryDirectory() as directory,
        contextlib.ExitStack() as changes,
    ):
        for number, callback in enumerate(callbacks):
            own = os.path.join(directory, str(number))
            for name, value in _redirected(callback, own).items():
                changes.callback(setattr, callback, name, vars(callback)[name])
                setattr(callback, name, value)
        yield


def _redirected(callback: keras.callbacks.Callback, directory: str) -> dict[str, Any]:
    """Returns the attributes with which a callback writes to a directory."""
    for kind, name in _PATHS.items():
        if isinstance(callback, kind):
            os.mkdir(directory)
            path = str(getattr(callback, name))
            attributes: dict[str, Any] = {
                # Keras looks at the ending, and fills in `{epoch}`.
                name: os.path.join(directory, os.path.basename(path))
            }
            if isinstance(callback, keras.callbacks.ModelCheckpoint):
                attributes["verbose"] = 0
            return attributes
    return {}
