"""The state of a directory: its `checkpoint` file, and the status of its training.

The `checkpoint` file lists the checkpoints. It has the text format of TensorFlow's
`CheckpointState` message, so `tf.train.get_checkpoint_state` and TensorBoard can also
read it. Training holds a lock while it runs. Other processes, which see only the
directory, learn from a marker that no more checkpoints will follow.
"""

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Iterator

from keras_tpu_estimator.base.common.types import PathLike
from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.base.storage.paths import canonical, is_url
from keras_tpu_estimator.files.atomic import commit

FILE_NAME = "checkpoint"

_FIELD = re.compile(
    r'^\s*(?P<key>\w+)\s*:\s*(?:"(?P<text>(?:[^"\\]|\\.)*)"|(?P<number>\S+))',
    re.MULTILINE,
)


@dataclasses.dataclass(frozen=True)
class Saved:
    """One checkpoint of a directory.

    Attributes:
        name: Its prefix, relative to the directory.
        time: The time of the save, in seconds since 1970. 0.0, the default,
            means unknown.
    """

    name: str
    time: float = 0.0


@dataclasses.dataclass(frozen=True)
class CheckpointState:
    """The checkpoints of a directory to which retention applies.

    Attributes:
        latest: The prefix of the checkpoint to restore, relative to the
            directory.
        saved: All checkpoints, oldest first. Defaults to none.
        last_preserved: The time of the last checkpoint that is kept forever, or
            else of the first save, in seconds since 1970. None, the default,
            means unknown.
    """

    latest: str
    saved: tuple[Saved, ...] = ()
    last_preserved: float | None = None


def load(model_dir: str, file_name: str = FILE_NAME) -> CheckpointState | None:
    """Reads a directory's state file, if any, which must name a checkpoint."""
    path = os.path.join(model_dir, file_name)
    try:
        with paths.opened(path) as file:
            text = file.read().decode(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return _parse(text, model_dir)
    except ValueError as error:
        raise ValueError(
            f"{path!r} must name the latest checkpoint. Received an invalid "
            f"file ({error}). Repair it by writing the one line "
            "'model_checkpoint_path: \"model.ckpt-<step>\"', or delete it "
            "with the checkpoints to train from the beginning."
        ) from error


def store(model_dir: str, state: CheckpointState) -> None:
    """Writes the state file of an existing directory atomically."""
    lines = [f"model_checkpoint_path: {_quote(state.latest)}"]
    for saved in state.saved:
        lines.append(f"all_model_checkpoint_paths: {_quote(saved.name)}")
    for saved in state.saved:
        lines.append(f"all_model_checkpoint_timestamps: {saved.time!r}")
    if state.last_preserved is not None:
        lines.append(f"last_preserved_timestamp: {state.last_preserved!r}")
    with commit.replacing(os.path.join(model_dir, FILE_NAME)) as partial:
        # The bytes must be the same on Windows.
        with open(partial, "w", encoding="utf-8", newline="\n") as file:
            file.write("\n".join(lines) + "\n")


def _parse(text: str, model_dir: str) -> CheckpointState:
    texts: dict[str, list[str]] = {}
    numbers: dict[str, list[float]] = {}
    for field in _FIELD.finditer(text):
        if field["number"] is None:
            texts.setdefault(field["key"], []).append(_unescape(field["text"]))
        else:
            numbers.setdefault(field["key"], []).append(float(field["number"]))
    latest = texts.get("model_checkpoint_path", [""])[-1]
    if not latest:
        raise ValueError("it has no model_checkpoint_path")
    names = texts.get("all_model_checkpoint_paths", [latest])
    latest, *names = (_relative(name, model_dir) for name in (latest, *names))
    times = numbers.get("all_model_checkpoint_timestamps", [])
    if len(times) != len(names):
        times = [0.0] * len(names)
    preserved = numbers.get("last_preserved_timestamp", [None])[-1]
    return CheckpointState(latest, tuple(map(Saved, names, times)), preserved)


def _relative(name: str, model_dir: str) -> str:
    """Returns a name relative to the directory, also for a full path."""
    directory, base = os.path.split(name)
    is_whole = bool(directory) and (os.path.isabs(name) or is_url(name))
    is_here = is_whole and canonical(directory) == canonical(model_dir)
    return base if is_here else name


def _quote(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _unescape(text: str) -> str:
    r"""Undoes C escapes; TensorFlow writes 'é' as its two bytes \303\251."""
    with contextlib.suppress(UnicodeError):
        as_bytes = text.encode().decode("unicode_escape").encode("latin-1")
        return as_bytes.decode()
    return text


@contextlib.contextmanager
def only_training(directory: PathLike) -> Iterator[None]:
    """Prevents a second training in a directory during a `with` block.

    The operating system holds the lock, and releases it when the process ends in any
    way. Forked processes do not hold it. There is no lock for a URL or on a file system
    without locks. The directory is created, and removed again if it stays empty.

    Raises:
        RuntimeError: Another training on this machine uses the directory.
    """
    if is_url(directory):
        yield
        return
    is_new = not os.path.isdir(directory)
    os.makedirs(directory, exist_ok=True)
    descriptor = commit.open_lock(directory)
    try:
        _lock(descriptor, directory)
        yield
    finally:
        commit.close_lock(descriptor)
        if is_new:
            with contextlib.suppress(OSError):
                os.rmdir(directory)


@contextlib.contextmanager
def if_no_training(directory: PathLike) -> Iterator[bool]:
    """Yields whether no training uses a directory, and prevents new trainings."""
    descriptor = commit.open_lock(directory)
    try:
        commit.take_lock(descriptor)
        is_free = True
    except commit.TakenError:
        is_free = False
    try:
        yield is_free
    finally:
        commit.close_lock(descriptor)


def _lock(descriptor: int, directory: PathLike) -> None:
    try:
        commit.take_lock(descriptor)
    except commit.TakenError as error:
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
    """Marks the training in a directory as complete at its last step."""
    model_dir = os.fsdecode(model_dir)
    paths.make_directory(model_dir)
    path = os.path.join(model_dir, COMPLETE_FILE)
    with commit.replacing(path) as partial:
        with open(partial, "w", encoding="utf-8") as file:
            json.dump({"global_step": global_step}, file)


def unmark_complete(model_dir: PathLike) -> None:
    """Removes the marker, because training continues."""
    with contextlib.suppress(FileNotFoundError):
        paths.remove(os.path.join(os.fsdecode(model_dir), COMPLETE_FILE))
