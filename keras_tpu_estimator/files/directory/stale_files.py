"""What saves have left that belongs to no checkpoint, and its removal.

Nothing else in a directory of checkpoints is ever removed.
"""

import contextlib
import dataclasses
import errno
import os
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Self

from keras_tpu_estimator.files.atomic.checksum import NO_TOKEN
from keras_tpu_estimator.files.atomic.checksum import token_of
from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.files.directory import save_names
from keras_tpu_estimator.files.directory.save_names import SaveName
from keras_tpu_estimator.ground.storage import paths


@dataclasses.dataclass(frozen=True)
class ExistingCheckpoint:
    """The checkpoint that is at a prefix.

    Example:

    >>> ExistingCheckpoint.at("/nowhere/model.ckpt-20")
    ExistingCheckpoint(main=None, data=(), token=None)

    Attributes:
        main: Its main file; `None` if there is none.
        data: The data of the bundle at the prefix, which may be another one.
        token: That of the save that has made it; `None` for another program.
    """

    main: str | None
    data: tuple[str, ...]
    token: str | None

    @classmethod
    def at(cls, prefix: str) -> Self:
        """What is there."""
        main = location.main_file(prefix)
        data = tuple(save_names.data_files(prefix))
        is_bundle = main == prefix + location.INDEX
        marked = next(iter(data), None) if is_bundle else main
        return cls(main, data, marked and token_of(marked))

    @property
    def is_bundle(self) -> bool:
        """Whether it is one of TensorFlow."""
        return self.main is not None and self.main.endswith(location.INDEX)

    def may_have(self, path: str, named: SaveName) -> bool:
        """Whether a file belongs to it, as far as anybody can tell.

        Args:
            path: The file.
            named: What its name says.
        """
        if named.kind in ("data", "meta"):
            is_own = named.kind == "meta" or path in self.data
            return self.is_bundle and (is_own or not self.data)
        if self.token is not None:
            return named.token == self.token
        # A main file that is damaged, or still being copied, does not tell. A
        # bundle that another program has made has no such files.
        return self.main is not None and not (self.is_bundle and self.data)


# What a folder has in it to say whose it is.
MARK = "kte_save"

# Files by their paths.
Named = Iterable[tuple[str, SaveName]]


def tidy(prefix: str, files: Named, failed: str | None = None) -> None:
    """Removes files that are of no checkpoint.

    Args:
        prefix: The prefix that they have.
        files: Those that are there.
        failed: The token of a save that has failed. Defaults to none.
    """
    there = ExistingCheckpoint.at(prefix)
    if there.data and not there.is_bundle and token_of(there.data[0]):
        # Of a bundle that was about to take its place.
        remove_files([prefix + location.INDEX])
    tree = prefix + location.TREE
    if there.main not in (None, tree) and token_of(tree):
        remove_files([tree])
    if there.token == failed:
        # It has failed when it was complete.
        failed = None
    for path, named in files:
        may_belong = there.may_have(path, named)
        if may_belong and failed is None:
            continue
        token = _token_of(path, named)
        if _is_ours(token, named) and (not may_belong or token == failed):
            remove_files([path])


def mark_of(prefix: str, files: Named) -> str | None:
    """The file that says that the checkpoint is to go unless it is listed.

    Args:
        prefix: Its prefix.
        files: Those that have it.

    Returns:
        Its path, or `None` if there is none of that save.
    """
    marks = {
        _token_of(path, named): path
        for path, named in files
        if named.kind == "unlisted"
    }
    # Most have none, and are not opened. That of another program has no token.
    token = ExistingCheckpoint.at(prefix).token if marks else None
    return None if token is None else marks.get(token)


def _token_of(path: str, named: SaveName) -> str | None:
    """The token of the save that a file or a folder belongs to."""
    if named.kind == "unlisted":
        with contextlib.suppress(OSError), paths.opened(path) as file:
            return None if file.read(1) else named.token
        return None
    if named.kind != "tree":
        return token_of(path)
    try:
        # Of a save that came no farther, or a removal that nearly did.
        is_empty = {*paths.names_in(path)} <= {MARK}
    except (FileNotFoundError, NotADirectoryError):
        return None
    return named.token if is_empty else token_of(os.path.join(path, MARK))


def _is_ours(token: str | None, named: SaveName) -> bool:
    """Whether this package has written a file: anybody may use such names.

    Args:
        token: What the file says.
        named: What its name says.
    """
    if named.kind == "data":
        return token is not None
    # What describes a bundle is the same for every save.
    return token == (named.token or NO_TOKEN)


def whole(prefix: str) -> list[str]:
    """The files without which there is no checkpoint, of either format."""
    files = [prefix + location.SUFFIX, prefix + location.TREE]
    if paths.is_file(prefix + location.INDEX):
        # Who finds both takes the other.
        data = save_names.data_files(prefix)
        files = [
            prefix + location.INDEX,
            *files,
            *data,
            prefix + save_names.META,
        ]
    return [path for path in files if paths.is_file(path)]


def listed(prefix: str) -> list[tuple[str, SaveName]]:
    """The files at a prefix whose names are those of saves."""
    directory, name = os.path.split(prefix)
    return [
        (path, named)
        for path, named in files_in(directory)
        if named.prefix == name
    ]


def files_in(directory: str) -> Iterator[tuple[str, SaveName]]:
    """The same in a directory, at any prefix."""
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(paths.names_in(directory or os.curdir)):
            named = SaveName.of(name)
            if named is not None:
                yield os.path.join(directory, name), named


def remove_files(files: Iterable[str]) -> None:
    """Removes files, and folders of Orbax, that may be gone already.

    If this process is killed, the rest of a folder keeps its mark.
    """
    for path in files:
        try:
            paths.remove(path, last=MARK)
        except FileNotFoundError:
            continue
        except OSError as error:
            # When Orbax fails it does not wait for what it has begun to
            # write. The next sweep removes the folder.
            if error.errno != errno.ENOTEMPTY:
                raise
