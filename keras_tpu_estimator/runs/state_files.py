"""The files beside checkpoints that hold the state of callbacks and hooks.

'model.ckpt-20.callbacks.0f0f0f0f.zip' belongs to the 'model.ckpt-20.h5' of the
same save, and appears before it. Process 0 writes it for all processes. A
checkpoint without one is the end of a call of `train`, another program's, or of
a call without such a state.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterable

from keras_tpu_estimator.engine.inputs import packed_files
from keras_tpu_estimator.engine.inputs.packing import Packed, pack, unpack
from keras_tpu_estimator.files.directory.save_files import SaveFiles
from keras_tpu_estimator.spec.hooks.hook_states import SavedState

_RECORD = "callbacks.json"


def packed(states: Iterable[SavedState]) -> Packed:
    """Copies states, so that training may continue before they are written.

    Raises:
        TypeError: A state has something else than numbers, strings and arrays.
    """
    parts = [_packed(state) for state in states]
    texts = json.dumps([(part.text, len(part.blobs)) for part in parts])
    return Packed(texts, tuple(blob for part in parts for blob in part.blobs))


def write(saved: SaveFiles, states: Packed) -> None:
    """Writes the states of a checkpoint, whole or not at all.

    Example:

    >>> import tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> from keras_tpu_estimator.files.checkpoints import saving
    >>> saved = SaveFiles(f"{tempfile.mkdtemp()}/model.ckpt-20")
    >>> write(saved, packed([SavedState("mine.Counter", 0, {"count": 3})]))
    >>> saving.save_into(
    ...     saved, 20, {}, retention=checkpoints.Retention())
    >>> read(saved.prefix)[0].state
    {'count': 3}
    """
    packed_files.write(
        saved.callbacks,
        saved.token,
        _RECORD,
        {"states": states.text},
        states.blobs,
    )


def read(prefix: str) -> list[SavedState] | None:
    """Reads the states of a checkpoint, if it has any.

    Raises:
        ValueError: The file is corrupt.
    """
    saved = SaveFiles.at(prefix)
    if saved is None:
        return None
    try:
        record, blobs = packed_files.read(saved.callbacks, _RECORD)
        each, states = iter(blobs), []
        for text, count in json.loads(record["states"]):
            its_own = tuple(itertools.islice(each, count))
            states.append(SavedState(**unpack(Packed(text, its_own))))
        return states
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{saved.callbacks!r} must hold the state of callbacks and hooks. "
            f"Received a corrupt file ({error}). Delete it to let them begin "
            "afresh."
        ) from error


def _packed(state: SavedState) -> Packed:
    # Not `asdict`, which would copy large arrays once more.
    fields = dataclasses.fields(state)
    try:
        return pack({each.name: getattr(state, each.name) for each in fields})
    except TypeError as error:
        raise TypeError(
            f"The state of {state.kind} cannot be saved with a checkpoint. {error}"
        ) from error
