"""Removal of files that belong to no checkpoint, and a check for unlisted ones."""

import contextlib
import dataclasses
import errno
import os
import re
from collections.abc import Callable, Iterable
from typing import Self

from keras_tpu_estimator.base.storage import paths
from keras_tpu_estimator.files.atomic.checksum import SIZE, token_in, token_of
from keras_tpu_estimator.files.directory import layouts, location, state_file
from keras_tpu_estimator.files.directory.layouts import Layout, Listing, SaveName

# Paths of files, and their parsed names.
Named = Iterable[tuple[str, SaveName]]


@dataclasses.dataclass(frozen=True)
class ExistingCheckpoint:
    """The checkpoint at a prefix and its files; without one, `layout` is `None`.

    Its token is `None` if another program wrote it.
    """

    prefix: str
    layout: Layout | None
    data: tuple[str, ...]
    token: str | None

    @classmethod
    def at(cls, prefix: str, is_file: Callable[[str], bool] = paths.is_file) -> Self:
        """Finds the checkpoint at a prefix."""
        layout = layouts.layout_at(prefix, is_file)
        if layout is None:
            return cls(prefix, None, (), None)
        return cls(
            prefix, layout, tuple(layout.data_at(prefix)), layout.token_at(prefix)
        )

    def may_have(self, path: str, named: SaveName) -> bool:
        """Returns whether a file may belong to it."""
        if self.layout is None:
            return False
        if named.token is None:
            is_of_format = named.kind in self.layout.fixed
            is_own = path in self.layout.members(self.prefix)
            return is_of_format and (is_own or not self.data)
        if self.token is not None:
            return named.token == self.token
        # A main file that is corrupt, or still being copied, has no token. A
        # checkpoint of another program, with data files, has no such files.
        return not self.data

    def tidy(self, files: Named, failed: str | None = None) -> None:
        """Removes the stale files among those at its prefix, or of a `failed` save."""
        if self.token == failed:
            # The save failed after it was complete.
            failed = None
        for path, named in files:
            may_belong = self.may_have(path, named)
            if may_belong and failed is None:
                continue
            if failed is not None and named.token == failed:
                # A broken upload may have cut off the token at its end.
                remove_files([path])
                continue
            token = _token_of(path, named)
            if _is_ours(token, named) and (not may_belong or token == failed):
                remove_files([path])


# The file in a folder that names its save.
MARK = "kte_save"


def tidy(prefix: str, listing: Listing, failed: str | None = None) -> None:
    """Removes stale files at a prefix of a listing, and those of a `failed` save."""
    existing = ExistingCheckpoint.at(prefix, listing.is_file)
    if existing.layout is not None:
        # Other main files belong to an unfinished save in another format.
        later = layouts.LAYOUTS[layouts.LAYOUTS.index(existing.layout) + 1 :]
        remove_files(
            layout.main(prefix)
            for layout in later
            if listing.is_file(layout.main(prefix)) and layout.token_at(prefix)
        )
    existing.tidy(listing.saves_at(prefix), failed)


def mark_of(prefix: str, listing: Listing) -> str | None:
    """Returns the marker to delete the checkpoint if it is not listed, or `None`."""
    marks = {
        _token_of(path, named): path
        for path, named in listing.saves_at(prefix)
        if named.kind == "unlisted"
    }
    # Most checkpoints have no marker, and need not be opened.
    if not marks:
        return None
    existing = ExistingCheckpoint.at(prefix, listing.is_file)
    if existing.token is not None:
        return marks.get(existing.token)
    # The file of another program also has no token.
    is_cut = existing.layout is not None and _is_cut_hdf5(existing.layout.main(prefix))
    marks_of_saves = (mark for token, mark in marks.items() if token is not None)
    return next(marks_of_saves, None) if is_cut else None


def _token_of(path: str, named: SaveName) -> str | None:
    """Returns the token of the save that a file or folder belongs to."""
    if named.kind == "unlisted":
        with contextlib.suppress(OSError), paths.opened(path) as file:
            return None if file.read(1) else named.token
        return None
    if not named.is_folder:
        is_cut = _is_cut(path, named)
        return named.token if is_cut else token_of(path)
    try:
        # The folder is from an interrupted save or removal.
        is_empty = {*paths.names_in(path)} <= {MARK}
    except (FileNotFoundError, NotADirectoryError):
        return None
    return named.token if is_empty else token_of(os.path.join(path, MARK))


# The token of a save is at the end of each file. If an upload broke off, the beginning
# of the content shows that this package wrote the file.
_HDF5 = b"\x89HDF\r\n\x1a\n"
# The first entry of an archive follows this magic number and its fields.
_ARCHIVE, _ENTRY = b"PK\x03\x04", 30
# By version of the superblock, the position of the address at which the file ends.
_END_ADDRESS = {0: 40, 1: 44, 2: 28, 3: 28}
_HEAD_BYTES = 64


def _is_cut(path: str, named: SaveName) -> bool:
    """Returns whether a file of a save is only the beginning of what was written."""
    if named.token is None or named.is_folder:
        return False
    if named.kind not in ("position", "callbacks"):
        return named.kind != "unlisted" and _is_cut_hdf5(path)
    head, _, token = _ends(path)
    entry = head[_ENTRY:]
    name = f"{named.kind}.json".encode()[: len(entry)]
    return (
        token is None
        and head.startswith(_ARCHIVE[: len(head)])
        and (entry.startswith(name))
    )


def _is_cut_hdf5(path: str) -> bool:
    """Returns whether a file is the beginning of a longer HDF5 file, or is empty."""
    head, size, token = _ends(path)
    if token is not None or not head.startswith(_HDF5[: len(head)]):
        return False
    at = _END_ADDRESS.get(head[len(_HDF5)]) if len(head) > len(_HDF5) else 0
    if at is None:
        return False
    return size < _HEAD_BYTES or size < int.from_bytes(head[at : at + 8], "little")


def _ends(path: str) -> tuple[bytes, int, str | None]:
    """Returns the first bytes of a file, its size, and its token if it is complete.

    For a file that cannot be read, the bytes belong to no format.
    """
    try:
        with paths.opened(path) as file:
            head = file.read(_HEAD_BYTES)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - SIZE))
            return head, size, token_in(file.read(SIZE))
    except OSError:
        return b"unreadable", 0, None


def _is_ours(token: str | None, named: SaveName) -> bool:
    """Returns whether this package wrote a file: its token must match its name."""
    if named.token is None:
        # Files that describe a checkpoint are the same for every save.
        return token is not None
    return token == named.token


def checkpoint_files(
    prefix: str, is_file: Callable[[str], bool] = paths.is_file
) -> list[str]:
    """Returns the existing files that make up a checkpoint, in any format."""
    # Readers prefer the first format, so its main file is removed last.
    existing = [
        layout for layout in layouts.LAYOUTS[::-1] if is_file(layout.main(prefix))
    ]
    main_files = [layout.main(prefix) for layout in existing]
    members = (path for layout in existing for path in layout.members(prefix))
    return [*main_files, *filter(is_file, members)]


def remove_files(files: Iterable[str]) -> None:
    """Removes files and folders, which may already be missing.

    If this process is killed, the rest of a folder keeps its marker.
    """
    for path in files:
        try:
            paths.remove(path, last=MARK)
        except FileNotFoundError:
            continue
        except OSError as error:
            # After a failure, Orbax may still be writing. The next sweep
            # removes the folder.
            if error.errno != errno.ENOTEMPTY:
                raise


_PREFIX = re.compile(re.escape(location.BASENAME) + "-([0-9]+)")
# A message names at most this many of them.
_NAMED = 5


def check_listed(model_dir: str) -> None:
    """Raises `ValueError` if a directory lists no checkpoint but contains some."""
    listing = Listing.at(model_dir)
    names = _names_in(listing)
    # Another process may list its first checkpoint meanwhile.
    if not names or location.latest(model_dir) is not None:
        return
    shown = ", ".join(map(repr, names[:_NAMED]))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    raise ValueError(
        f"`model_dir` must have a file {state_file.FILE_NAME!r} that names one "
        f"of its checkpoints. Received: {model_dir!r}, with {shown}{more} and "
        "without that file, or with one that names others. To continue from "
        f"{names[0]!r}, write the line 'model_checkpoint_path: "
        f'"{names[0]}"\' into {os.path.join(model_dir, state_file.FILE_NAME)}. '
        "To evaluate or predict only, pass `checkpoint_path`. To train from "
        "the beginning, use another directory, or delete these checkpoints."
    )


def _names_in(listing: Listing) -> list[str]:
    """Returns the names of the checkpoints in a directory, newest first."""
    names = {
        prefix for file in listing.names if (prefix := location.prefix_of(file)) != file
    }
    matches = filter(None, map(_PREFIX.fullmatch, names))
    steps = sorted((int(match[1]), match[0]) for match in matches)[::-1]
    if not steps:
        return []
    # The next training removes the files of a killed save.
    return [
        name
        for _, name in steps
        if mark_of(os.path.join(listing.directory, name), listing) is None
    ]
