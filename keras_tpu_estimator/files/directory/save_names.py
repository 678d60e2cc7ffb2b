"""What the files of a checkpoint are called.

'model.ckpt-20.h5', or the 'model.ckpt-20.index' of a bundle of TensorFlow, is
its main file. Those that belong to it have the token of one save in their names
('model.ckpt-20.shard-0-of-2.0f0f0f0f'), so that the same step can be saved
again beside them. A bundle's have the names that TensorFlow gives them.
"""

import dataclasses
import re
from typing import Self

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
