"""Names of the files of a checkpoint.

The main file is 'model.ckpt-20.h5', or 'model.ckpt-20.index' for a TensorFlow
checkpoint. Other files have the token of their save in their names
('model.ckpt-20.shard-0-of-2.0f0f0f0f'), so that the same step can be saved
again beside them. The data files of a TensorFlow checkpoint have TensorFlow's
names.
"""

import dataclasses
import re
from typing import Self

from keras_tpu_estimator.files.directory.location import INDEX
from keras_tpu_estimator.ground.storage import paths

_TOKEN = "(?P<{}>[0-9a-f]{{8}})"
_NAME = re.compile(
    r"(?P<prefix>.+-[0-9]+)\.(?:"
    rf"shard-[0-9]+-of-[0-9]+\.{_TOKEN.format('part')}"
    rf"|orbax\.{_TOKEN.format('tree')}"
    rf"|input(?:-[0-9]+-of-[0-9]+)?\.{_TOKEN.format('position')}\.zip"
    rf"|callbacks\.{_TOKEN.format('callbacks')}\.zip"
    rf"|unlisted\.{_TOKEN.format('unlisted')}"
    r"|(?P<data>data-[0-9]{5}-of-[0-9]{5})"
    r"|(?P<meta>meta))"
)


def part(prefix: str, number: int, count: int, token: str) -> str:
    """Returns the path of a host's file with shards of variables.

    Example:

    >>> part("/run/model.ckpt-20", 0, 4, "0f0f0f0f")
    '/run/model.ckpt-20.shard-0-of-4.0f0f0f0f'
    """
    return f"{prefix}.shard-{number}-of-{count}.{token}"


def tree(prefix: str, token: str) -> str:
    """Returns the path of the folder that Orbax writes.

    Example:

    >>> tree("/run/model.ckpt-20", "0f0f0f0f")
    '/run/model.ckpt-20.orbax.0f0f0f0f'
    """
    return f"{prefix}.orbax.{token}"


def position(prefix: str, host: int, hosts: int, token: str) -> str:
    """Returns the path of the file with a host's iterator state.

    Example:

    >>> position("model.ckpt-20", 1, 4, "0f0f0f0f")
    'model.ckpt-20.input-1-of-4.0f0f0f0f.zip'
    >>> position("model.ckpt-20", 0, 1, "0f0f0f0f")
    'model.ckpt-20.input.0f0f0f0f.zip'
    """
    which = f"-{host}-of-{hosts}" if hosts > 1 else ""
    return f"{prefix}.input{which}.{token}.zip"


def callbacks(prefix: str, token: str) -> str:
    """Returns the path of the file with the state of callbacks and hooks.

    Example:

    >>> callbacks("/run/model.ckpt-20", "0f0f0f0f")
    '/run/model.ckpt-20.callbacks.0f0f0f0f.zip'
    """
    return f"{prefix}.callbacks.{token}.zip"


def unlisted(prefix: str, token: str) -> str:
    """Returns the path of the marker to delete a checkpoint that is not listed.

    Example:

    >>> unlisted("/run/model.ckpt-20", "0f0f0f0f")
    '/run/model.ckpt-20.unlisted.0f0f0f0f'
    """
    return f"{prefix}.unlisted.{token}"


@dataclasses.dataclass(frozen=True)
class SaveName:
    """The parsed name of a file of a checkpoint, except a main file.

    Attributes:
        prefix: The prefix of the checkpoint.
        kind: 'part', 'tree', 'position', 'callbacks', 'unlisted', 'data' or
            'meta'.
        token: The token of the save; `None` if the name has none.

    Example:

    >>> SaveName.of("model.ckpt-20.input.0f0f0f0f.zip")
    SaveName(prefix='model.ckpt-20', kind='position', token='0f0f0f0f')
    >>> SaveName.of("mnist.input.zip") is None
    True
    """

    prefix: str
    kind: str
    token: str | None

    @classmethod
    def of(cls, name: str) -> Self | None:
        """Parses a name or path; returns `None` for any other file."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        kind = match.lastgroup or ""
        has_token = kind not in ("data", "meta")
        return cls(match["prefix"], kind, match[kind] if has_token else None)


# The ending of the file that describes a TensorFlow checkpoint.
META = ".meta"
# More bytes than the first entry of the index, which describes the checkpoint.
_HEAD = 64
# Numbers in file names have five digits.
_MOST = 10**5


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
