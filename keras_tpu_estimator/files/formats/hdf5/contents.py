"""What the files of a checkpoint in HDF5 should have in them."""

import functools
import os
from collections.abc import Iterator

import h5py

from keras_tpu_estimator.files.atomic import checksum
from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.files.formats.hdf5 import shards
from keras_tpu_estimator.files.formats.intact import Content
from keras_tpu_estimator.ground.storage.copies import local_copy


def of(prefix: str) -> Iterator[Content]:
    """The files of a checkpoint, the main file last.

    So hosts that share them read those that they have written.

    Args:
        prefix: That of an existing checkpoint.

    Raises:
        ValueError: The main file is damaged; of the others nothing is known.
    """
    main = prefix + location.SUFFIX
    copy = local_copy(main)
    if checksum.load(copy.path) is None:
        raise ValueError(f"{main!r} is truncated or damaged.")
    with h5py.File(copy.path, "r", locking=False) as file:
        seals = shards.seals_of(file)
    for name, seal in sorted(seals.items()):
        path = os.path.join(os.path.dirname(prefix), name)
        yield Content((path,), functools.partial(_has, path, seal), seal)
    yield Content((main,), functools.partial(checksum.is_right, main))


def _has(path: str, seal: int) -> bool:
    """Whether a file is right, and the one that belongs to the checkpoint."""
    is_its = checksum.seal(local_copy(path).path) == seal
    return is_its and checksum.is_right(path)
