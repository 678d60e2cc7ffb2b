"""The files beside checkpoints that hold the positions in the input.

'model.ckpt-20.input.0f0f0f0f.zip' belongs to the 'model.ckpt-20.h5' of the same
save, and appears before it. That of an earlier save of the step stays until
then. A checkpoint without one is the end of a call of `train`, or another
program's. Of several hosts, each has one: 'model.ckpt-20.input-1-of-4...'.
"""

import dataclasses

from keras_tpu_estimator.engine.inputs import packed_files
from keras_tpu_estimator.engine.inputs.packing import Packed
from keras_tpu_estimator.engine.inputs.position import (
    Position,
    RestorePoint,
    StepRecipe,
)
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.ground.hosts.agreement import Hosts

_RECORD = "position.json"
_ALONE = Hosts()


def write(saved: SaveFiles, position: Position, hosts: Hosts = _ALONE) -> None:
    """Writes the position of a checkpoint, whole or not at all.

    Args:
        hosts: The hosts. By default there is one.

    Example:

    >>> import tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> from keras_tpu_estimator.files.checkpoints import saving
    >>> saved = SaveFiles(f"{tempfile.mkdtemp()}/model.ckpt-20")
    >>> write(saved, Position(20, StepRecipe(64, calls=1, call_size=64)))
    >>> saving.save_into(
    ...     saved, 20, {}, retention=checkpoints.Retention())
    >>> read(saved.prefix).steps
    20
    """
    record = dataclasses.asdict(position)
    states = position.restore_point.states
    if states is not None:
        record["restore_point"]["states"] = states.text
    packed_files.write(
        saved.position(hosts.index, hosts.count),
        saved.token,
        _RECORD,
        record,
        states.blobs if states else (),
    )


def read(prefix: str, hosts: Hosts = _ALONE) -> Position | None:
    """Reads the position of a checkpoint, if it has one.

    If another number of hosts has written it, steps are what is known.

    Args:
        hosts: The hosts. By default there is one.

    Raises:
        ValueError: The file is damaged.
    """
    saved = SaveFiles.at(prefix)
    if saved is None:
        return None
    position = _read(saved.position(hosts.index, hosts.count))
    if position is not None:
        return position
    for path in saved.positions():
        other = _read(path)
        if other is not None:
            return Position(other.steps, other.recipe)
    return None


def remove(prefix: str) -> None:
    """Removes the positions of a checkpoint, and the state of callbacks."""
    saved = SaveFiles.at(prefix)
    if saved is not None:
        saved.remove_resume_files()


def _read(path: str) -> Position | None:
    try:
        record, blobs = packed_files.read(path, _RECORD)
        restore_point = record["restore_point"]
        if restore_point["states"] is not None:
            restore_point["states"] = Packed(restore_point["states"], blobs)
        return Position(
            record["steps"],
            StepRecipe(**record["recipe"]),
            RestorePoint(**restore_point),
        )
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path!r} does not say how far the input was read "
            f"({error}). Delete it to read the input from the beginning."
        ) from error
