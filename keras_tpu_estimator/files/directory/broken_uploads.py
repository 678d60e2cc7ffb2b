"""Recognition of files whose upload broke off, so that their ends are missing.

The token of a save is at the end of each file. Without it, the beginning of the content
shows that this package wrote the file.
"""

import os

from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.files.atomic.checksum import SIZE, token_in
from keras_tpu_estimator.files.directory.layouts import SaveName

_HDF5 = b"\x89HDF\r\n\x1a\n"
# The first entry of an archive follows this magic number and its fields.
_ARCHIVE, _ENTRY = b"PK\x03\x04", 30
# By version of the superblock, the position of the address at which the file ends.
_END_ADDRESS = {0: 40, 1: 44, 2: 28, 3: 28}
_HEAD = 64


def is_cut(path: str, named: SaveName) -> bool:
    """Returns whether a file of a save is only the beginning of what was written."""
    if named.token is None or named.is_folder:
        return False
    if named.kind not in ("position", "callbacks"):
        return named.kind != "unlisted" and is_cut_hdf5(path)
    head, _, token = _read(path)
    entry = head[_ENTRY:]
    name = f"{named.kind}.json".encode()[: len(entry)]
    return (
        token is None
        and head.startswith(_ARCHIVE[: len(head)])
        and (entry.startswith(name))
    )


def is_cut_hdf5(path: str) -> bool:
    """Returns whether a file is the beginning of a longer HDF5 file, or is empty."""
    head, size, token = _read(path)
    if token is not None or not head.startswith(_HDF5[: len(head)]):
        return False
    at = _END_ADDRESS.get(head[len(_HDF5)]) if len(head) > len(_HDF5) else 0
    if at is None:
        return False
    return size < _HEAD or size < int.from_bytes(head[at : at + 8], "little")


def _read(path: str) -> tuple[bytes, int, str | None]:
    """Returns the first bytes of a file, its size, and its token if it is complete.

    For a file that cannot be read, the bytes belong to no format.
    """
    try:
        with paths.opened(path) as file:
            head = file.read(_HEAD)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - SIZE))
            return head, size, token_in(file.read(SIZE))
    except OSError:
        return b"unreadable", 0, None
