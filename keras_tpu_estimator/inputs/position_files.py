"""The files beside checkpoints that hold the positions in the input.

'model.ckpt-20.input.zip' belongs to 'model.ckpt-20.h5', and appears before it.
A checkpoint without one is the end of a call of `train`, or another program's.
Of several hosts, each has its own: 'model.ckpt-20.input-1-of-4.zip'.
"""

import contextlib
import dataclasses
import json
import os
import re
import zipfile

from keras_tpu_estimator.checkpoints import commit
from keras_tpu_estimator.checkpoints import location
from keras_tpu_estimator.hosts.agreement import Hosts
from keras_tpu_estimator.inputs.packing import Packed
from keras_tpu_estimator.inputs.position import Position
from keras_tpu_estimator.inputs.position import RestorePoint
from keras_tpu_estimator.inputs.position import StepRecipe
from keras_tpu_estimator.storage import paths

_RECORD = "position.json"
_NAME = re.compile(r"(?P<prefix>.*)\.input(-[0-9]+-of-[0-9]+)?\.zip")
_ALONE = Hosts()


def path_of(prefix: str, hosts: Hosts = _ALONE) -> str:
    """The file with the position of this host.

    Args:
        prefix: That of the checkpoint.
        hosts: The hosts. By default there is one.

    Example:

    >>> path_of("model.ckpt-20", Hosts(index=1, count=4))
    'model.ckpt-20.input-1-of-4.zip'
    """
    part = f"-{hosts.index}-of-{hosts.count}" if hosts.are_several else ""
    return f"{prefix}.input{part}.zip"


def write(prefix: str, position: Position, hosts: Hosts = _ALONE) -> None:
    """Writes the position of a checkpoint, whole or not at all.

    Args:
        prefix: That of the checkpoint, in an existing directory.
        position: The position.
        hosts: The hosts. By default there is one.

    Example:

    >>> import tempfile
    >>> prefix = os.path.join(tempfile.mkdtemp(), "model.ckpt-20")
    >>> write(prefix, Position(20, StepRecipe(64, calls=1, call_size=64)))
    >>> read(prefix).steps
    20
    """
    record = dataclasses.asdict(position)
    states = position.restore_point.states
    if states is not None:
        record["restore_point"]["states"] = states.text
        record["blobs"] = len(states.blobs)
    with commit.replacing(path_of(prefix, hosts)) as partial:
        with zipfile.ZipFile(partial, "w") as file:
            file.writestr(_RECORD, json.dumps(record))
            for number, blob in enumerate(states.blobs if states else ()):
                file.writestr(str(number), blob)


def read(prefix: str, hosts: Hosts = _ALONE) -> Position | None:
    """Reads the position of a checkpoint, if it has one.

    If another number of hosts has written it, steps are what is known.

    Args:
        prefix: That of the checkpoint.
        hosts: The hosts. By default there is one.

    Raises:
        ValueError: The file is damaged.
    """
    position = _read(path_of(prefix, hosts))
    if position is not None:
        return position
    for path in _paths_of(prefix):
        other = _read(path)
        if other is not None:
            return Position(other.steps, other.recipe)
    return None


def _read(path: str) -> Position | None:
    try:
        with (
            paths.opened(path) as stream,
            zipfile.ZipFile(stream) as file,
        ):
            record = json.loads(file.read(_RECORD))
            restore_point = record["restore_point"]
            if restore_point["states"] is not None:
                blobs = [file.read(str(n)) for n in range(record["blobs"])]
                restore_point["states"] = Packed(
                    restore_point["states"], tuple(blobs)
                )
            return Position(
                record["steps"],
                StepRecipe(**record["recipe"]),
                RestorePoint(**restore_point),
            )
    except FileNotFoundError:
        return None
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path!r} does not say how far the input was read "
            f"({error}). Delete it to read the input from the beginning."
        ) from error


def remove(prefix: str, hosts: Hosts = _ALONE) -> None:
    """Removes the position of a checkpoint, if it has one.

    Args:
        prefix: That of the checkpoint.
        hosts: The hosts, of which the chief removes those of other numbers of
            hosts, too. By default there is one.
    """
    for path in {path_of(prefix, hosts), *_stale(prefix, hosts)}:
        _remove(path)


def prune(directory: str) -> None:
    """Removes positions of checkpoints that are gone.

    Args:
        directory: An existing directory.
    """
    for name in paths.names_in(directory):
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        prefix = os.path.join(directory, match["prefix"])
        if not location.exists(prefix):
            _remove(os.path.join(directory, name))


def _paths_of(prefix: str) -> list[str]:
    """The files of a checkpoint, whatever the number of hosts was."""
    directory, own = os.path.split(prefix)
    try:
        names = paths.names_in(directory)
    except FileNotFoundError:
        return []
    return [
        os.path.join(directory, name)
        for name in sorted(names)
        if (match := _NAME.fullmatch(name)) and match["prefix"] == own
    ]


def _stale(prefix: str, hosts: Hosts) -> list[str]:
    """Those of other numbers of hosts, if it is for this host to know."""
    if not hosts.is_chief:
        return []
    current = {
        path_of(prefix, Hosts(index, hosts.count))
        for index in range(hosts.count)
    }
    return [path for path in _paths_of(prefix) if path not in current]


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        paths.remove(path)
