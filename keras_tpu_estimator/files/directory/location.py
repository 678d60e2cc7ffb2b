"""Paths of checkpoints: prefixes, files and directories, after writing has ended."""

import contextlib
import difflib
import logging
import os
import threading
from collections.abc import Callable

from keras_tpu_estimator.base.common import registry as parts
from keras_tpu_estimator.base.common.shown import shown
from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.base.storage.paths import is_url
from keras_tpu_estimator.files.directory import layouts, state_file

# The running threads that write into each directory.
_IN_FLIGHT: dict[str, set[threading.Thread]] = {}
_LOCK = threading.Lock()


class Writer:
    """A writer of checkpoints on a thread, for which the process waits before it exits.

    The next use of the writer raises an error of the thread.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, directory: PathLike, write: Callable[[], object]) -> None:
        """Begins to write into a directory after the previous checkpoint is complete.

        This raises the error of the previous write if that failed.
        """
        self.wait()
        path = paths.canonical(directory)
        thread = threading.Thread(
            target=self._run,
            args=(path, write),
            name="checkpoint-writer",
        )
        with _LOCK:
            # A thread that cannot start is not registered.
            thread.start()
            _IN_FLIGHT.setdefault(path, set()).add(thread)
        self._thread = thread

    def wait(self) -> None:
        """Waits for the current write, and raises its error if it failed."""
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, directory: str, write: Callable[[], object]) -> None:
        try:
            write()
        except BaseException as error:
            self._error = error
        finally:
            with _LOCK:
                threads = _IN_FLIGHT[directory]
                threads.remove(threading.current_thread())
                if not threads:
                    del _IN_FLIGHT[directory]


def wait_for(directory: PathLike) -> None:
    """Waits for this process's writers in a directory, which raise their own errors."""
    path = paths.canonical(directory)
    with _LOCK:
        threads = [*_IN_FLIGHT.get(path, ())]
    for thread in threads:
        thread.join()


BASENAME = "model.ckpt"
# The ending of Keras's weight files.
_KERAS = ".weights.h5"
# The number of similar names that may be directories with checkpoints.
_SIMILAR = 10

_logger = logging.getLogger(__name__)


def name_for(step: int, basename: str = BASENAME) -> str:
    """Returns the name of the checkpoint of a step, as TensorFlow writes it."""
    return f"{basename}-{step}"


def prefix_of(path: str) -> str:
    """Returns the prefix for a main file; other paths stay the same.

    >>> prefix_of("/run/model.ckpt-20.h5"), prefix_of("/run/model.weights.h5")
    ('/run/model.ckpt-20', '/run/model.weights.h5')
    """
    if path.endswith(_KERAS):
        return path
    for end in layouts.endings():
        path = path.removesuffix(end)
    return path


def prefix_at(path: str) -> str:
    """Returns the prefix for a user's path; a directory stays the same."""
    return path if paths.is_directory(path) else prefix_of(path)


def exists(prefix: str, is_file: Callable[[str], bool] = paths.is_file) -> bool:
    """Returns whether a prefix has a main file, without opening it."""
    return layouts.layout_at(prefix, is_file) is not None


def main_file(prefix: str) -> str | None:
    """Returns the main file of a prefix, or `None` if there is no checkpoint."""
    layout = layouts.layout_at(prefix)
    return None if layout is None else layout.main(prefix)


def latest(model_dir: PathLike) -> str | None:
    """Finds the latest checkpoint of a directory.

    If the latest checkpoint that the `checkpoint` file lists is missing, the
    newest existing one is returned, and a warning is logged. If this process is
    writing a checkpoint, this waits for it.

    Args:
        model_dir: A directory, which need not exist.

    Returns:
        A prefix such as '<model_dir>/model.ckpt-20', or None if there is no
        checkpoint.

    Raises:
        ValueError: The `checkpoint` file is unreadable.

    Example:

    >>> import tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> directory = tempfile.mkdtemp()
    >>> checkpoints.latest(directory) is None
    True
    >>> prefix = checkpoints.save(directory, 20, {})
    >>> checkpoints.latest(directory) == prefix
    True

    Reference: `tf.train.latest_checkpoint`.
    """
    return newest(os.fsdecode(model_dir), exists)


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
    return newest(
        os.fsdecode(checkpoint_dir),
        lambda prefix: exists(prefix) or _is_of_tensorflow(prefix),
        latest_filename or state_file.FILE_NAME,
    )


def newest(
    model_dir: str,
    is_there: Callable[[str], bool],
    state_name: str = state_file.FILE_NAME,
) -> str | None:
    """Finds the newest checkpoint of a directory, in any format that `is_there` finds.

    If this process is writing a checkpoint, this waits for it. A missing directory has
    none, and an unreadable state file raises `ValueError`.
    """
    wait_for(model_dir)
    prefixes = listed(model_dir, state_name)
    if not prefixes:
        return None
    prefix = next(filter(is_there, prefixes), None)
    if prefix != prefixes[0]:
        _logger.warning(
            "The latest checkpoint of %r, %r, is missing. %s",
            model_dir,
            prefixes[0],
            f"Using {prefix!r} instead."
            if prefix
            else "The other checkpoints in its 'checkpoint' file are also missing.",
        )
    return prefix


def listed(model_dir: str, state_name: str = state_file.FILE_NAME) -> list[str]:
    """Returns the prefixes in a directory's state file, newest first.

    The checkpoints may be missing. An unreadable state file raises `ValueError`.
    """
    state = state_file.load(model_dir, state_name)
    if state is None:
        return []
    names = [state.latest, *(saved.name for saved in reversed(state.saved))]
    # TensorFlow may write absolute names, which stay the same.
    return [
        name if is_url(name) else os.path.join(model_dir, name)
        for name in dict.fromkeys(names)
    ]


def resolve(checkpoint_path: PathLike) -> str:
    """Finds the checkpoint at a path.

    Args:
        checkpoint_path: A prefix such as 'dir/model.ckpt-20', the file
            'dir/model.ckpt-20.h5', a file that ends with '.index' or '.orbax',
            or a directory, for its latest checkpoint.

    Returns:
        The prefix.

    Raises:
        ValueError: The checkpoint does not exist. The message lists the paths
            that were tried, and the checkpoints that exist.

    Example:

    >>> import tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> directory = tempfile.mkdtemp()
    >>> prefix = checkpoints.save(directory, 20, {})
    >>> {resolve(p) == prefix for p in (prefix, prefix + ".h5", directory)}
    {True}
    """
    if not isinstance(checkpoint_path, str | bytes | os.PathLike):
        raise ValueError(
            f"A checkpoint must be a path. Received: {shown(checkpoint_path)}. Pass "
            "a directory of checkpoints, or one such as 'dir/model.ckpt-20'."
        )
    path = os.fsdecode(checkpoint_path)
    prefix = prefix_at(path)
    if exists(prefix):
        return prefix
    latest_prefix = latest(path) if paths.is_directory(path) else None
    if latest_prefix is None:
        raise ValueError(
            f"{path!r} is not a valid checkpoint: {_what_is_wrong(path)} "
            f"{alternatives(path)}"
        )
    return latest_prefix


def alternatives(path: str, file_endings: tuple[str, ...] = ()) -> str:
    """Returns a sentence for an error message: the checkpoints near a path.

    `file_endings` are the endings of files that are checkpoints of other programs.
    """
    directory, name = os.path.split(path)
    if paths.is_directory(path):
        directory, name = path, ""
    directory = directory or os.curdir
    if not paths.is_directory(directory):
        return f"The directory {directory!r} does not exist."
    existing = {
        # The checkpoint of another program is named by its file.
        file if file_endings and file.endswith(file_endings) else prefix_of(file)
        for file in paths.names_in(directory)
        if file.endswith((*layouts.endings(), *file_endings))
    }
    name = prefix_of(name)
    near = difflib.get_close_matches(name, sorted(existing - {name}), n=3, cutoff=0.0)
    if not near:
        return f"There is no other checkpoint in {directory!r}."
    return f"Checkpoints in {directory!r}: {', '.join(near)}."


def similar_directory(model_dir: str) -> str | None:
    """Returns the directory with checkpoints beside `model_dir` whose name is nearest.

    Only similar names count. It is for a message, so it never raises an error.
    """
    above, name = os.path.split(model_dir.rstrip("/" + os.sep))
    # A store may not let this user list the directory above.
    with contextlib.suppress(Exception):
        names = {*paths.names_in(above or os.curdir)} - {name}
        for near in difflib.get_close_matches(name, sorted(names), _SIMILAR):
            directory = os.path.join(above, near)
            if paths.is_file(os.path.join(directory, state_file.FILE_NAME)):
                return directory
    return None


def _is_of_tensorflow(prefix: str) -> bool:
    """Returns whether a prefix may be a checkpoint that TensorFlow has written."""
    return bool(parts.part("tensorflow files").exists(prefix))


def _what_is_wrong(path: str) -> str:
    prefix = prefix_of(path)
    if paths.is_directory(path):
        return f"no {state_file.FILE_NAME!r} file there names one that exists."
    *files, last = (repr(prefix + end) for end in layouts.endings())
    return f"there is no file {', '.join(files)} or {last}, and no directory {path!r}."
