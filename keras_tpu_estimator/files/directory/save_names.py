"""What the files of a checkpoint are called.

'model.ckpt-20.h5', or the 'model.ckpt-20.index' of a bundle of TensorFlow, is
its main file. Those that belong to it have the token of one save in their names
('model.ckpt-20.shard-0-of-2.0f0f0f0f'), so that the same step can be saved
again beside them. A bundle's have the names that TensorFlow gives them.
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
    """The file with parts of variables that a host has.

    Args:
        prefix: That of the checkpoint.
        number: Which of the files.
        count: How many there are.
        token: That of the save.

    Example:

    >>> part("/run/model.ckpt-20", 0, 4, "0f0f0f0f")
    '/run/model.ckpt-20.shard-0-of-4.0f0f0f0f'
    """
    return f"{prefix}.shard-{number}-of-{count}.{token}"


def tree(prefix: str, token: str) -> str:
    """The folder with what Orbax writes.

    Args:
        prefix: That of the checkpoint.
        token: That of the save.

    Example:

    >>> tree("/run/model.ckpt-20", "0f0f0f0f")
    '/run/model.ckpt-20.orbax.0f0f0f0f'
    """
    return f"{prefix}.orbax.{token}"


def position(prefix: str, host: int, hosts: int, token: str) -> str:
    """The file with the position of a host in its input.

    Args:
        prefix: That of the checkpoint.
        host: Which host.
        hosts: How many there are.
        token: That of the save.

    Example:

    >>> position("model.ckpt-20", 1, 4, "0f0f0f0f")
    'model.ckpt-20.input-1-of-4.0f0f0f0f.zip'
    >>> position("model.ckpt-20", 0, 1, "0f0f0f0f")
    'model.ckpt-20.input.0f0f0f0f.zip'
    """
    which = f"-{host}-of-{hosts}" if hosts > 1 else ""
    return f"{prefix}.input{which}.{token}.zip"


def callbacks(prefix: str, token: str) -> str:
    """Returns the file with the state of callbacks and hooks.

    Args:
        prefix: The prefix of the checkpoint.
        token: The token of the save.

    Example:

    >>> callbacks("/run/model.ckpt-20", "0f0f0f0f")
    '/run/model.ckpt-20.callbacks.0f0f0f0f.zip'
    """
    return f"{prefix}.callbacks.{token}.zip"


def unlisted(prefix: str, token: str) -> str:
    """The file that says that a checkpoint is to go if it is not listed.

    Args:
        prefix: That of the checkpoint.
        token: That of the save.

    Example:

    >>> unlisted("/run/model.ckpt-20", "0f0f0f0f")
    '/run/model.ckpt-20.unlisted.0f0f0f0f'
    """
    return f"{prefix}.unlisted.{token}"


@dataclasses.dataclass(frozen=True)
class SaveName:
    """A name that a file of a checkpoint could have, but for a main file.

    Attributes:
        prefix: That of the checkpoint.
        kind: 'part', 'tree', 'position', 'callbacks', 'unlisted', 'data' or
            'meta'.
        token: That of the save; `None` if the name has none.

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
        """What a name says; `None` if it is none of those.

        Args:
            name: The name of any file, or its path.
        """
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        kind = match.lastgroup or ""
        has_token = kind not in ("data", "meta")
        return cls(match["prefix"], kind, match[kind] if has_token else None)


# What describes a bundle.
META = ".meta"
# More than the first entry of a table has, which describes the bundle.
_HEAD = 64
# Names have five digits.
_MOST = 10**5


def data_file(prefix: str, number: int, count: int) -> str:
    """The path of a file with the values of a bundle.

    Args:
        prefix: That of the bundle.
        number: Which of the files.
        count: How many there are.

    Example:

    >>> data_file("model.ckpt-20", 0, 1)
    'model.ckpt-20.data-00000-of-00001'
    """
    return f"{prefix}.data-{number:05d}-of-{count:05d}"


def data_files(prefix: str) -> list[str]:
    """The files with the values of a bundle, as its index has them.

    Args:
        prefix: That of the bundle.

    Returns:
        Their paths; none if there is no index, or it makes no sense.

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
    """How many files there are, by the first bytes of an index.

    The first entry of the table has no key, and a `BundleHeaderProto`, of which
    the first field is meant. TensorFlow compresses none of it.
    """
    # Lengths of what the key shares with the one before, of the key, and of
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
