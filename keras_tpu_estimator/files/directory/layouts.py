"""The names of a checkpoint's files, in each format that this package writes.

The main file is 'model.ckpt-20.h5', or 'model.ckpt-20.index' for a TensorFlow
checkpoint. It is written last, and makes a checkpoint of the others. If a format
replaces another one at the same prefix, both have main files for a moment; the
first of `LAYOUTS` is then the checkpoint. Other files have the token of their save in
their names ('model.ckpt-20.shard-0-of-2.0f0f0f0f'), so that the same step can be saved
again beside them, unless the layout of a format fixes them.
"""

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Mapping
from typing import Self

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


# Layouts are compared by identity, because a mapping has no hash.
@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """The names of a checkpoint's files in one format.

    A checkpoint exists if its main file does. Old checkpoints, and files of incomplete
    saves, are deleted by these names.

    Args:
        ending: The ending of the main file, after the prefix.
        saved: Regular expressions of the names of other files, by kind: of the
            part between the prefix and the token of the save. A kind is an
            identifier that no other format uses. Defaults to none.
        fixed: The same for files without a token in their names. Defaults to none.
        folders: The kinds that are folders. Defaults to none.
        data: Returns the paths of the files that the main file of a prefix
            refers to, of which the first ends with the marker of the save.
            Defaults to None, if the main file ends with the marker.
        described: The endings of further files with fixed names. Defaults to
            none.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> layout = kte.checkpoints.Layout(".npz", saved={"npz_shard": "shard-[0-9]+"})
    >>> layout.main("run/model.ckpt-20")
    'run/model.ckpt-20.npz'
    """

    ending: str
    saved: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    folders: frozenset[str] = frozenset()
    data: Callable[[str], list[str]] | None = None
    described: tuple[str, ...] = ()

    def main(self, prefix: str) -> str:
        """Returns the path of the main file, which may be missing.

        Args:
            prefix: The path without the ending.

        Returns:
            A path or URL.
        """
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
    """Returns the path of a data file of a TensorFlow checkpoint."""
    return f"{prefix}.data-{number:05d}-of-{count:05d}"


def data_files(prefix: str) -> list[str]:
    """Returns the data files that an intact TensorFlow index names; otherwise none."""
    try:
        with paths.opened(prefix + INDEX) as file:
            count = _count(file.read(_HEAD))
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        return []
    return [data_file(prefix, number, count) for number in range(count)]


def _count(head: bytes) -> int:
    """Returns the number of data files, from an index's first bytes if they are valid.

    The first entry of the index has no key, and contains a `BundleHeaderProto`, whose
    first field is the number. TensorFlow does not compress these bytes.
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


def layout_at(
    prefix: str, is_file: Callable[[str], bool] = paths.is_file
) -> Layout | None:
    """Returns the layout of the existing checkpoint at a prefix, or `None`."""
    existing = (layout for layout in LAYOUTS if is_file(layout.main(prefix)))
    return next(existing, None)


_TOKEN = "(?P<{}>[0-9a-f]{{8}})"
# The files of every save, besides those of its format.
_NAMES = (
    rf"input(?:-[0-9]+-of-[0-9]+)?\.{_TOKEN.format('position')}\.zip",
    rf"callbacks(?:-[0-9]+-of-[0-9]+)?\.{_TOKEN.format('callbacks')}\.zip",
    rf"unlisted\.{_TOKEN.format('unlisted')}",
)


def saved(prefix: str, name: str, token: str) -> str:
    """Returns the path of a file or folder of a save."""
    return f"{prefix}.{name}.{token}"


def position(prefix: str, host: int, hosts: int, token: str) -> str:
    """Returns the path of the file with a host's iterator state.

    >>> position("model.ckpt-20", 1, 4, "0f0f0f0f")
    'model.ckpt-20.input-1-of-4.0f0f0f0f.zip'
    """
    return _of_host(prefix, "input", host, hosts, token)


def callbacks(prefix: str, host: int, hosts: int, token: str) -> str:
    """Returns the path of the file with the state of a host's callbacks and hooks."""
    return _of_host(prefix, "callbacks", host, hosts, token)


def _of_host(prefix: str, name: str, host: int, hosts: int, token: str) -> str:
    number = f"-{host}-of-{hosts}" if hosts > 1 else ""
    return f"{prefix}.{name}{number}.{token}.zip"


def unlisted(prefix: str, token: str) -> str:
    """Returns the path of the marker to delete a checkpoint that is not listed."""
    return saved(prefix, "unlisted", token)


@dataclasses.dataclass(frozen=True)
class SaveName:
    """The parsed name of a file of a checkpoint, except a main file.

    The kind is 'position', 'callbacks', 'unlisted', or a kind of a `Layout`. The token
    is `None` if the name has none.

    >>> SaveName.parse("model.ckpt-20.input.0f0f0f0f.zip")
    SaveName(prefix='model.ckpt-20', kind='position', token='0f0f0f0f')
    """

    prefix: str
    kind: str
    token: str | None

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Parses a name or path; returns `None` for any other file."""
        match = _pattern(tuple(LAYOUTS)).fullmatch(name)
        if match is None:
            return None
        kind = match.lastgroup or ""
        has_token = not any(kind in layout.fixed for layout in LAYOUTS)
        return cls(match["prefix"], kind, match[kind] if has_token else None)

    @property
    def is_folder(self) -> bool:
        """Whether this is the name of a folder."""
        return any(self.kind in layout.folders for layout in LAYOUTS)


@dataclasses.dataclass(frozen=True)
class Listing:
    """The names in a directory, which are read at once.

    Each question to an object store takes as long as a list of all names.
    """

    directory: str
    names: frozenset[str]

    @classmethod
    def at(cls, directory: str) -> Self:
        """Reads the names in a directory, which may be missing."""
        try:
            names = paths.names_in(directory or os.curdir)
        except FileNotFoundError:
            names = []
        return cls(directory, frozenset(names))

    @classmethod
    def beside(cls, prefix: str) -> Self:
        """Reads the names in the directory of a prefix."""
        return cls.at(os.path.dirname(prefix))

    def is_file(self, path: str) -> bool:
        """Returns whether a file of the directory exists, and existed before."""
        return os.path.basename(path) in self.names and paths.is_file(path)

    def prefixes(self) -> list[str]:
        """Returns the prefixes of the files that have names of saves."""
        return [os.path.join(self.directory, name) for name in self._saves]

    def saves_at(self, prefix: str) -> list[tuple[str, SaveName]]:
        """Returns the files at a prefix that have names of saves, with the names."""
        return self._saves.get(os.path.basename(prefix), [])

    def without(self, prefix: str, token: str) -> Self:
        """Returns the names except those of one save."""
        left_out = {
            os.path.basename(path)
            for path, named in self.saves_at(prefix)
            if named.token == token
        }
        return dataclasses.replace(self, names=self.names - left_out)

    @functools.cached_property
    def _saves(self) -> dict[str, list[tuple[str, SaveName]]]:
        saves: dict[str, list[tuple[str, SaveName]]] = {}
        for name in sorted(self.names):
            named = SaveName.parse(name)
            if named is not None:
                path = os.path.join(self.directory, name)
                saves.setdefault(named.prefix, []).append((path, named))
        return saves


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
