"""Whether all files of a checkpoint are those that were written together."""

import contextlib
import os

import h5py

from keras_tpu_estimator.files.checkpoints import checksum
from keras_tpu_estimator.files.checkpoints import location
from keras_tpu_estimator.files.checkpoints import shards
from keras_tpu_estimator.ground.storage import paths
from keras_tpu_estimator.ground.storage.copies import local_copy


def is_intact(prefix: str, host: int = 0, hosts: int = 1) -> bool:
    """Whether all files of a checkpoint are as they were written.

    Every byte is read, once for as long as sizes and times of the files stay.

    Args:
        prefix: That of an existing checkpoint.
        host: Which of several hosts this is, each of which reads some of the
            files with parts of variables. Defaults to 0.
        hosts: How many there are. Defaults to 1.

    Example:

    >>> import tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> is_intact(checkpoints.save(tempfile.mkdtemp(), 20, {}))
    True
    """
    main = prefix + location.SUFFIX
    if not checksum.is_intact(main):
        return False
    seals = shard_files(prefix)
    try:
        identity = tuple(map(paths.version, [main, *seals]))
    except FileNotFoundError:
        return False
    if not seals or checksum.is_trusted(identity):
        return True
    own = sorted(seals)[host::hosts]
    is_own_intact = all(
        checksum.is_intact(path)
        and checksum.seal(local_copy(path).path) == seals[path]
        for path in own
    )
    if hosts == 1 and is_own_intact:
        checksum.trust_as(identity)
    return is_own_intact


def trust(prefix: str) -> None:
    """Has `is_intact` believe in a checkpoint that was just written.

    Args:
        prefix: That of the checkpoint, which this process and others wrote.
    """
    main = prefix + location.SUFFIX
    # Another machine may see it later; then it is read to be checked.
    with contextlib.suppress(FileNotFoundError):
        checksum.trust(main)
        files = [main, *shard_files(prefix)]
        checksum.trust_as(tuple(map(paths.version, files)))


def shard_files(prefix: str) -> dict[str, int]:
    """The files with parts of variables that belong to a checkpoint.

    Args:
        prefix: That of an existing checkpoint, whose main file is intact.

    Returns:
        Seals by path.
    """
    directory = os.path.dirname(prefix)
    copy = local_copy(prefix + location.SUFFIX)
    with h5py.File(copy.path, "r", locking=False) as file:
        return {
            os.path.join(directory, name): seal
            for name, seal in shards.seals_of(file).items()
        }
