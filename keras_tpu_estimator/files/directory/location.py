"""Where a checkpoint is: prefixes, files, directories."""

import difflib
import logging
import os
from collections.abc import Callable

from keras_tpu_estimator.files.directory import state_file
from keras_tpu_estimator.files.directory.background_writer import wait_for
from keras_tpu_estimator.ground.base.types import PathLike
from keras_tpu_estimator.ground.storage import paths
from keras_tpu_estimator.ground.storage.urls import is_url

SUFFIX = ".h5"
# A bundle of TensorFlow has its data in other files.
INDEX = ".index"
# A tree of Orbax has its data in a folder.
TREE = ".orbax"
# Of several that there are for a moment, the first is the checkpoint.
_ENDS = (SUFFIX, INDEX, TREE)
BASENAME = "model.ckpt"
# What Keras saves the weights of a model as.
_KERAS = ".weights.h5"

_logger = logging.getLogger(__name__)


def name_for(step: int, basename: str = BASENAME) -> str:
    """The name of the checkpoint of a step, relative to its directory.

    Args:
        step: The global step.
        basename: What the name begins with. Defaults to TensorFlow's.

    Returns:
        TensorFlow's name for it.

    Example:

    >>> name_for(20)
    'model.ckpt-20'
    """
    return f"{basename}-{step}"


def prefix_of(path: str) -> str:
    """The prefix of the checkpoint that a main file belongs to.

    Args:
        path: The path of a main file, or any other, which is returned.

    Example:

    >>> prefix_of("/run/model.ckpt-20.h5"), prefix_of("/run/model.weights.h5")
    ('/run/model.ckpt-20', '/run/model.weights.h5')
    """
    if path.endswith(_KERAS):
        return path
    for end in _ENDS:
        path = path.removesuffix(end)
    return path


def prefix_at(path: str) -> str:
    """The prefix that a user's path stands for; a directory is no main file.

    Args:
        path: A prefix, a main file, or a directory, which is returned.
    """
    return path if paths.is_directory(path) else prefix_of(path)


def exists(prefix: str) -> bool:
    """Whether there is a checkpoint file for a prefix.

    Args:
        prefix: The path of a checkpoint file, without '.h5', of a bundle of
            TensorFlow, without '.index', or of a tree of Orbax, without
            '.orbax'.

    Returns:
        True if the file is there; it is not opened.

    Example:

    >>> exists("/nowhere/model.ckpt-20")
    False
    """
    return main_file(prefix) is not None


def main_file(prefix: str) -> str | None:
    """The file by which there is a checkpoint for a prefix.

    Args:
        prefix: The path of a checkpoint, without '.h5', '.index' or '.orbax'.

    Returns:
        Its path, the first of these if there are several; None if there is no
        checkpoint.

    Example:

    >>> main_file("/nowhere/model.ckpt-20") is None
    True
    """
    files = (prefix + end for end in _ENDS)
    return next(filter(paths.is_file, files), None)


def latest(model_dir: PathLike) -> str | None:
    """Finds the latest checkpoint of a directory.

    Where the one that the `checkpoint` file calls the latest is gone, it is
    the newest of those listed that is still there, and a warning is logged.
    One that this process is writing is waited for.

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


def newest(
    model_dir: str,
    is_there: Callable[[str], bool],
    state_name: str = state_file.FILE_NAME,
) -> str | None:
    """Finds the newest checkpoint of a directory, of any kind.

    One that this process is writing is waited for.

    Args:
        model_dir: A directory, which need not exist.
        is_there: Whether there is a checkpoint for a prefix.
        state_name: The name of its state file. Defaults to 'checkpoint'.

    Returns:
        A prefix, or None if there is no checkpoint.

    Raises:
        ValueError: The state file is unreadable.

    Example:

    >>> import tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> directory = tempfile.mkdtemp()
    >>> prefix = checkpoints.save(directory, 20, {})
    >>> newest(directory, exists) == prefix
    True
    """
    wait_for(model_dir)
    prefixes = listed(model_dir, state_name)
    if not prefixes:
        return None
    found = next(filter(is_there, prefixes), None)
    if found != prefixes[0]:
        _logger.warning(
            "The latest checkpoint of %r is gone: there is no %r. %s",
            model_dir,
            prefixes[0],
            f"Using {found!r} instead."
            if found
            else "None of the others that its 'checkpoint' file lists exists.",
        )
    return found


def listed(model_dir: str, state_name: str = state_file.FILE_NAME) -> list[str]:
    """The checkpoints that a directory's state file lists.

    Args:
        model_dir: A directory, which need not exist.
        state_name: The name of its state file. Defaults to 'checkpoint'.

    Returns:
        Prefixes, the newest first, whether or not there are such files.

    Raises:
        ValueError: The state file is unreadable.

    Example:

    >>> listed("/nowhere")
    []
    """
    state = state_file.load(model_dir, state_name)
    if state is None:
        return []
    names = [state.latest, *(saved.name for saved in reversed(state.saved))]
    # Absolute names, which TensorFlow may write, are left as they are.
    return [
        name if is_url(name) else os.path.join(model_dir, name)
        for name in dict.fromkeys(names)
    ]


def resolve(checkpoint_path: PathLike) -> str:
    """Finds the checkpoint that a user means.

    Args:
        checkpoint_path: A prefix such as 'dir/model.ckpt-20', the file
            'dir/model.ckpt-20.h5', one that ends with '.index' or '.orbax', or
            a directory, whose latest checkpoint is meant.

    Returns:
        The prefix.

    Raises:
        ValueError: There is no such checkpoint; the message says where it
            was looked for and what is there instead.

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
            f"{checkpoint_path!r} is not a valid checkpoint: expected a path, "
            f"received a value of type {type(checkpoint_path).__name__}. Pass "
            "a directory of checkpoints, or one such as 'dir/model.ckpt-20'."
        )
    path = os.fsdecode(checkpoint_path)
    prefix = prefix_at(path)
    if exists(prefix):
        return prefix
    found = latest(path) if paths.is_directory(path) else None
    if found is None:
        raise ValueError(
            f"{path!r} is not a valid checkpoint: {_what_is_wrong(path)} "
            f"{alternatives(path)}"
        )
    return found


def alternatives(path: str, others: tuple[str, ...] = ()) -> str:
    """Says which checkpoints there are near a path that did not do.

    Args:
        path: A directory, or what would be a file or a prefix in one.
        others: How names of files end that are checkpoints of other programs.
            Defaults to none.

    Returns:
        A sentence for an error message.

    Example:

    >>> alternatives("/nowhere/model.ckpt-20")
    "The directory '/nowhere' does not exist."
    """
    directory, name = os.path.split(path)
    if paths.is_directory(path):
        directory, name = path, ""
    directory = directory or os.curdir
    if not paths.is_directory(directory):
        return f"The directory {directory!r} does not exist."
    there = {
        # One of another program is asked for by its file.
        file if others and file.endswith(others) else prefix_of(file)
        for file in paths.names_in(directory)
        if file.endswith((*_ENDS, *others))
    }
    name = prefix_of(name)
    near = difflib.get_close_matches(
        name, sorted(there - {name}), n=3, cutoff=0.0
    )
    if not near:
        return f"There is no other checkpoint in {directory!r}."
    return f"Checkpoints in {directory!r}: {', '.join(near)}."


def _what_is_wrong(path: str) -> str:
    prefix = prefix_of(path)
    if paths.is_directory(path):
        return f"no {state_file.FILE_NAME!r} file there names one that exists."
    return (
        f"there is no file {prefix + SUFFIX!r}, {prefix + INDEX!r} or "
        f"{prefix + TREE!r}, and no directory {path!r}."
    )
