"""The files beside checkpoints that hold the positions in the input.

'model.ckpt-20.input.zip' belongs to 'model.ckpt-20.h5', and appears before it.
A checkpoint without one is the end of a call of `train`, or another program's.
"""

import contextlib
import dataclasses
import json
import os
import zipfile

from keras_tpu_estimator.checkpoints import commit
from keras_tpu_estimator.checkpoints import location
from keras_tpu_estimator.inputs.packing import Packed
from keras_tpu_estimator.inputs.position import Position
from keras_tpu_estimator.inputs.position import RestorePoint
from keras_tpu_estimator.inputs.position import StepRecipe
from keras_tpu_estimator.storage import paths

SUFFIX = ".input.zip"
_RECORD = "position.json"


def write(prefix: str, position: Position) -> None:
    """Writes the position of a checkpoint, whole or not at all.

    Args:
        prefix: That of the checkpoint, in an existing directory.
        position: The position.

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
    with commit.replacing(prefix + SUFFIX) as partial:
        with zipfile.ZipFile(partial, "w") as file:
            file.writestr(_RECORD, json.dumps(record))
            for number, blob in enumerate(states.blobs if states else ()):
                file.writestr(str(number), blob)


def read(prefix: str) -> Position | None:
    """Reads the position of a checkpoint, if it has one.

    Args:
        prefix: That of the checkpoint.

    Raises:
        ValueError: The file is damaged.
    """
    try:
        with (
            paths.opened(prefix + SUFFIX) as stream,
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
            f"{prefix + SUFFIX!r} does not say how far the input was read "
            f"({error}). Delete it to read the input from the beginning."
        ) from error


def remove(prefix: str) -> None:
    """Removes the position of a checkpoint, if it has one.

    Args:
        prefix: That of the checkpoint.
    """
    with contextlib.suppress(FileNotFoundError):
        paths.remove(prefix + SUFFIX)


def prune(directory: str) -> None:
    """Removes positions of checkpoints that are gone.

    Args:
        directory: An existing directory.
    """
    for name in paths.names_in(directory):
        prefix = os.path.join(directory, name.removesuffix(SUFFIX))
        if name.endswith(SUFFIX) and not location.exists(prefix):
            remove(prefix)
