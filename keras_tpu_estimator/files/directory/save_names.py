"""Names of the files of a checkpoint.

The main file is 'model.ckpt-20.h5', or 'model.ckpt-20.index' for a TensorFlow
checkpoint. Other files have the token of their save in their names
('model.ckpt-20.shard-0-of-2.0f0f0f0f'), so that the same step can be saved
again beside them, unless the layout of a format fixes them.
"""

import dataclasses
import functools
import re
from typing import Self

from keras_tpu_estimator.files.directory import layouts
from keras_tpu_estimator.files.directory.layouts import Layout

_TOKEN = "(?P<{}>[0-9a-f]{{8}})"
# The files of every save, besides those of its format.
_NAMES = (
    rf"input(?:-[0-9]+-of-[0-9]+)?\.{_TOKEN.format('position')}\.zip",
    rf"callbacks\.{_TOKEN.format('callbacks')}\.zip",
    rf"unlisted\.{_TOKEN.format('unlisted')}",
)


def saved(prefix: str, name: str, token: str) -> str:
    """Returns the path of a file or folder of a save.

    Example:

    >>> saved("/run/model.ckpt-20", "shard-0-of-4", "0f0f0f0f")
    '/run/model.ckpt-20.shard-0-of-4.0f0f0f0f'
    """
    return f"{prefix}.{name}.{token}"


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
    return saved(prefix, "unlisted", token)


@dataclasses.dataclass(frozen=True)
class SaveName:
    """The parsed name of a file of a checkpoint, except a main file.

    Attributes:
        prefix: The prefix of the checkpoint.
        kind: 'position', 'callbacks', 'unlisted', or a kind of a `Layout`.
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
        match = _pattern(tuple(layouts.LAYOUTS)).fullmatch(name)
        if match is None:
            return None
        kind = match.lastgroup or ""
        has_token = not any(kind in layout.fixed for layout in layouts.LAYOUTS)
        return cls(match["prefix"], kind, match[kind] if has_token else None)

    @property
    def is_folder(self) -> bool:
        """Whether this is the name of a folder."""
        return any(self.kind in layout.folders for layout in layouts.LAYOUTS)


@functools.lru_cache(maxsize=2)
def _pattern(of_formats: tuple[Layout, ...]) -> re.Pattern[str]:
    """Returns the pattern of all names, with a named group for each kind."""
    names = [*_NAMES]
    for layout in of_formats:
        for kind, name in layout.saved.items():
            names.append(rf"{name}\.{_TOKEN.format(kind)}")
        for kind, name in layout.fixed.items():
            names.append(rf"(?P<{kind}>{name})")
    return re.compile(rf"(?P<prefix>.+-[0-9]+)\.(?:{'|'.join(names)})")
