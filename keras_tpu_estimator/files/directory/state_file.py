"""The `checkpoint` file: which checkpoints a directory holds.

It has the text form of TensorFlow's `CheckpointState` message, so that
`tf.train.get_checkpoint_state` and TensorBoard read it as well.
"""

import contextlib
import dataclasses
import os
import re

from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.ground.storage import paths
from keras_tpu_estimator.ground.storage.paths import canonical
from keras_tpu_estimator.ground.storage.urls import is_url

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
        time: When it was saved, in seconds since 1970. 0.0, the default, is
            "unknown".
    """

    name: str
    time: float = 0.0


@dataclasses.dataclass(frozen=True)
class CheckpointState:
    """The checkpoints of a directory that count for retention.

    Attributes:
        latest: Prefix of the one to restore, relative to the directory.
        saved: All of them, oldest first. Defaults to none.
        last_preserved: Time of the last checkpoint that was kept for ever, or
            else of the first save, in seconds since 1970. None, the default,
            is "unknown".
    """

    latest: str
    saved: tuple[Saved, ...] = ()
    last_preserved: float | None = None


def load(model_dir: str, file_name: str = FILE_NAME) -> CheckpointState | None:
    """Reads the state file of a directory.

    Args:
        model_dir: A directory, which need not exist.
        file_name: The name of the file. Defaults to 'checkpoint'.

    Returns:
        Its state, or None where there is no state file.

    Raises:
        ValueError: The file is there but names no checkpoint.

    Example:

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> load(directory) is None
    True
    >>> saved = Saved("model.ckpt-0", 5.0)
    >>> store(directory, CheckpointState("model.ckpt-0", (saved,)))
    >>> load(directory).saved
    (Saved(name='model.ckpt-0', time=5.0),)
    """
    path = os.path.join(model_dir, file_name)
    try:
        with paths.opened(path) as file:
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return None
    try:
        return _parse(text, model_dir)
    except ValueError as error:
        raise ValueError(
            f"{path!r} does not say which checkpoint is the latest ({error}). "
            "Repair it by writing the one line "
            "'model_checkpoint_path: \"model.ckpt-<step>\"', or delete it "
            "with the checkpoints to train from the beginning."
        ) from error


def store(model_dir: str, state: CheckpointState) -> None:
    """Writes the state file of a directory, whole or not at all.

    Args:
        model_dir: An existing directory.
        state: What to write.

    Example:

    >>> import pathlib, tempfile
    >>> directory = pathlib.Path(tempfile.mkdtemp())
    >>> state = CheckpointState("model.ckpt-0", (Saved("model.ckpt-0"),))
    >>> store(str(directory), state)
    >>> print((directory / "checkpoint").read_text())
    model_checkpoint_path: "model.ckpt-0"
    all_model_checkpoint_paths: "model.ckpt-0"
    all_model_checkpoint_timestamps: 0.0
    """
    lines = [f"model_checkpoint_path: {_quote(state.latest)}"]
    for saved in state.saved:
        lines.append(f"all_model_checkpoint_paths: {_quote(saved.name)}")
    for saved in state.saved:
        lines.append(f"all_model_checkpoint_timestamps: {saved.time!r}")
    if state.last_preserved is not None:
        lines.append(f"last_preserved_timestamp: {state.last_preserved!r}")
    with commit.replacing(os.path.join(model_dir, FILE_NAME)) as partial:
        # The same bytes on Windows.
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
    """A name within the directory, of which a `Saver` has the whole path."""
    directory, base = os.path.split(name)
    is_whole = os.path.isabs(name) or is_url(name)
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
