"""The names of a checkpoint's files in each format that this package writes.

The main file is written last, and makes a checkpoint of the others. If a format
replaces another one at the same prefix, both have main files for a moment; the
first of `LAYOUTS` is then the checkpoint.
"""

import dataclasses
from collections.abc import Callable, Mapping

from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.files.atomic.checksum import token_of

SUFFIX = ".h5"
# The data of a TensorFlow checkpoint are in other files.
INDEX = ".index"
# The file that describes a TensorFlow checkpoint.
META = ".meta"
# The data of an Orbax checkpoint are in a folder.
TREE = ".orbax"
# More bytes than the first entry of the index, which describes the checkpoint.
_HEAD = 64
# Numbers in file names have five digits.
_MOST = 10**5


# Compared by identity, because a mapping has no hash.
@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """The names of a checkpoint's files in one format.

    Attributes:
        ending: The ending of the main file, after the prefix.
        saved: Regular expressions of the names of other files, by kind: of the
            part between the prefix and the token of the save. Defaults to none.
        fixed: The same for files without a token in their names. Defaults to
            none.
        folders: The kinds that are folders. Defaults to none.
        data: Returns the paths of the files that the main file of a prefix
            refers to, of which the first contains the token of the save.
            Defaults to `None`: the main file contains it.
        described: The endings of further files with fixed names. Defaults to
            none.

    Example:

    >>> HDF5.main("/run/model.ckpt-20")
    '/run/model.ckpt-20.h5'
    """

    ending: str
    saved: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    folders: frozenset[str] = frozenset()
    data: Callable[[str], list[str]] | None = None
    described: tuple[str, ...] = ()

    def main(self, prefix: str) -> str:
        """Returns the path of the main file, which may be missing."""
        return prefix + self.ending

    def data_at(self, prefix: str) -> list[str]:
        """Returns the paths of data files, of which some may be missing."""
        return [] if self.data is None else self.data(prefix)

    def members(self, prefix: str) -> list[str]:
        """Returns the paths of all files with fixed names except the main file."""
        return [*self.data_at(prefix), *(prefix + end for end in self.described)]

    def token_at(self, prefix: str) -> str | None:
        """Returns the token of the save, or `None` if another program wrote it."""
        if self.data is None:
            return token_of(self.main(prefix))
        marked = next(iter(self.data(prefix)), None)
        return None if marked is None else token_of(marked)


def data_file(prefix: str, number: int, count: int) -> str:
    """Returns the path of a data file of a TensorFlow checkpoint.

    Example:

    >>> data_file("model.ckpt-20", 0, 1)
    'model.ckpt-20.data-00000-of-00001'
    """
    return f"{prefix}.data-{number:05d}-of-{count:05d}"


def data_files(prefix: str) -> list[str]:
    """Returns a TensorFlow checkpoint's data files, from its index.

    The list is empty if the index is missing or corrupt.

    Example:

    >>> data_files("/nowhere/model.ckpt-20")
    []
    """
    try:
        with paths.opened(prefix + INDEX) as file:
            count = _count(file.read(_HEAD))
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        return []
    return [data_file(prefix, number, count) for number in range(count)]


def _count(head: bytes) -> int:
    """Returns the number of data files, from the first bytes of an index.

    The first entry of the index has no key, and contains a `BundleHeaderProto`,
    whose first field is the number. TensorFlow does not compress these bytes.
    """
    # The lengths of the prefix shared with the previous key, of the key, and of
    # the value; then the value.
    has_header = head[:2] == b"\0\0" and head[3:4] == b"\x08"
    if not has_header:
        return 0
    count = shift = 0
    for byte in head[4 : 3 + head[2]]:
        count |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return count if count < _MOST else 0
    return 0


HDF5 = Layout(SUFFIX, saved={"part": "shard-[0-9]+-of-[0-9]+"})
TENSORFLOW = Layout(
    INDEX,
    fixed={"data": "data-[0-9]{5}-of-[0-9]{5}", "meta": "meta"},
    data=data_files,
    described=(META,),
)
ORBAX = Layout(TREE, saved={"tree": "orbax"}, folders=frozenset({"tree"}))
LAYOUTS = [HDF5, TENSORFLOW, ORBAX]


def endings() -> tuple[str, ...]:
    """Returns the endings of main files."""
    return tuple(layout.ending for layout in LAYOUTS)


def layout_at(prefix: str) -> Layout | None:
    """Returns the layout of the existing checkpoint at a prefix, or `None`.

    Example:

    >>> layout_at("/nowhere/model.ckpt-20") is None
    True
    """
    return next((each for each in LAYOUTS if paths.is_file(each.main(prefix))), None)
