"""The files of a save, and of the checkpoint that it makes.

A save writes its files beside those of an earlier save of the same step. Its
main file makes them the checkpoint. Before and after
that moment, a file is stale if its token differs from the main file's. No other
files in a directory of checkpoints are ever removed.
"""

import contextlib
import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping
from typing import BinaryIO, Self

from keras_tpu_estimator.base.storage import paths, shared_files
from keras_tpu_estimator.base.storage.paths import is_url
from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.files.atomic.checksum import new_token, stamp
from keras_tpu_estimator.files.directory import layouts, location, stale_files
from keras_tpu_estimator.files.directory.layouts import Layout, Listing
from keras_tpu_estimator.files.directory.stale_files import ExistingCheckpoint
from keras_tpu_estimator.files.directory.state_file import if_no_training


@dataclasses.dataclass(frozen=True)
class SaveFiles:
    """The files of one save, whose token differs in other saves of the same step.

    A `CheckpointFormat` gets it from the package.

    Args:
        prefix: The path of the main file without its ending.
        token: The token of the save. Defaults to a new one.
        object_graph: The serialized object graph of a TensorFlow checkpoint, which
            other formats ignore. Defaults to None: a checkpoint without objects.
        collections: The names of variables by the collections of a TensorFlow graph
            that contain them, such as "trainable_variables", for the `.meta` file.
            Defaults to none.

    Example:

    >>> import keras_tpu_estimator as kte
    >>> files = kte.checkpoints.SaveFiles("run/model.ckpt-20", "0f0f0f0f")
    >>> files.named("values")
    'run/model.ckpt-20.values.0f0f0f0f'
    """

    prefix: str
    token: str = dataclasses.field(default_factory=new_token)
    object_graph: bytes | None = None
    collections: Mapping[str, Collection[str]] = dataclasses.field(default_factory=dict)

    @classmethod
    def at(cls, prefix: str) -> Self | None:
        """Returns a checkpoint's files; `None` if another program wrote it.

        Args:
            prefix: The path of the main file without its ending.

        Returns:
            The files, with the token in the main file.
        """
        token = ExistingCheckpoint.at(prefix).token
        return None if token is None else cls(prefix, token)

    def named(self, name: str) -> str:
        """Returns the path of a file or folder of the format by its name.

        Args:
            name: A name that a pattern of `Layout.saved` matches.

        Returns:
            The path, which ends with the token.
        """
        return layouts.saved(self.prefix, name, self.token)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Opens a file of this save, which appears when the `with` block ends.

        The file then is complete, and ends with the marker of this save, which is 16
        bytes long. It does not appear if the block raises an error.

        Args:
            path: The path of the main file, or a result of `named`.

        Yields:
            A file that is open for writing bytes.
        """
        paths.make_directory(os.path.dirname(path))
        with commit.replacing(path) as partial, open(partial, "wb") as file:
            yield file
            file.write(stamp(self.token))

    def make_folder(self, name: str) -> None:
        """Creates a folder of the format, with the marker of this save."""
        path = self.named(name)
        paths.make_directory(path)
        with open(os.path.join(path, stale_files.MARK), "wb") as file:
            file.write(stamp(self.token))

    def position(self, host: int, hosts: int) -> str:
        """Returns the path of the file with a host's iterator state."""
        return layouts.position(self.prefix, host, hosts, self.token)

    def callbacks(self, host: int, hosts: int) -> str:
        """Returns the path of the file with the state of a host's callbacks."""
        return layouts.callbacks(self.prefix, host, hosts, self.token)

    def remove_resume_files(self) -> None:
        """Removes files that are needed only if the call is interrupted."""
        existing = ResumeFiles.from_save(self)
        stale_files.remove_files((*existing.positions, *existing.callbacks))

    def mark_unlisted(self) -> None:
        """Marks the checkpoint for deletion unless it is listed.

        A process may be killed while the main file exists but is not yet, or no longer,
        listed.
        """
        path = layouts.unlisted(self.prefix, self.token)
        # An empty file is complete at once.
        named = contextlib.nullcontext(path)
        with commit.replacing(path) if is_url(path) else named as name:
            with open(name, "wb"):
                pass

    def unmark(self) -> None:
        """Removes the marker."""
        stale_files.remove_files([layouts.unlisted(self.prefix, self.token)])

    @contextlib.contextmanager
    def marked_unlisted(self) -> Iterator[None]:
        """Sets the marker, and removes it only if the block raises an error."""
        self.mark_unlisted()
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):
                self.unmark()
            raise

    @contextlib.contextmanager
    def replacing(self, layout: Layout) -> Iterator[None]:
        """Removes the previous checkpoint after the block wrote a new `layout`."""
        listing = Listing.beside(self.prefix)
        before = stale_files.checkpoint_files(self.prefix, listing.is_file)
        yield
        now = {layout.main(self.prefix), *layout.members(self.prefix)}
        # The main file of another format is removed first, because readers may
        # prefer it.
        stale_files.remove_files(path for path in before if path not in now)
        new = ExistingCheckpoint(
            self.prefix, layout, tuple(layout.data_at(self.prefix)), self.token
        )
        new.tidy(listing.saves_at(self.prefix))

    @contextlib.contextmanager
    def tidied_on_failure(self, *but: type[BaseException]) -> Iterator[None]:
        """Removes the files of an incomplete save if the block fails.

        After the errors in `but`, the files stay, because another process may still
        complete the save.
        """
        try:
            yield
        except but:
            raise
        except BaseException:
            # Only the first error is raised.
            with contextlib.suppress(Exception):
                stale_files.tidy(self.prefix, Listing.beside(self.prefix), self.token)
            raise

    @contextlib.contextmanager
    def undone_on_failure(self, listing: Listing) -> Iterator[None]:
        """Removes the files of the save if the block fails.

        Files that have already replaced another checkpoint, in the directory's
        `listing`, are kept.
        """
        is_new = not location.exists(self.prefix, listing.is_file)
        with self.tidied_on_failure():
            try:
                yield
            except BaseException:
                with contextlib.suppress(Exception):
                    if is_new:
                        stale_files.remove_files(
                            stale_files.checkpoint_files(self.prefix)
                        )
                    else:
                        self.unmark()
                raise


@dataclasses.dataclass(frozen=True)
class ResumeFiles:
    """The existing files beside a checkpoint with which a later `train` resumes.

    `positions` are those of iterator states, and `callbacks` those of the states of
    callbacks and hooks, of all hosts.
    """

    save: SaveFiles
    positions: tuple[str, ...]
    callbacks: tuple[str, ...]

    @classmethod
    def from_save(cls, save: SaveFiles) -> Self:
        """Finds the files of a save."""
        paths_by_kind: dict[str, list[str]] = {"position": [], "callbacks": []}
        for path, named in Listing.beside(save.prefix).saves_at(save.prefix):
            if named.kind in paths_by_kind and named.token == save.token:
                paths_by_kind[named.kind].append(path)
        return cls(
            save, tuple(paths_by_kind["position"]), tuple(paths_by_kind["callbacks"])
        )

    @classmethod
    def at(cls, prefix: str) -> Self | None:
        """Finds the files of a checkpoint; `None` if another program wrote it."""
        save = SaveFiles.at(prefix)
        return None if save is None else cls.from_save(save)


def tidy(prefix: str) -> None:
    """Removes stale files beside the checkpoint at a prefix.

    If there is no checkpoint, this removes all files that would belong to it.
    """
    stale_files.tidy(prefix, Listing.beside(prefix))


def remove(prefix: str) -> None:
    """Removes a checkpoint, whichever program wrote it."""
    with shared_files.left_if_in_use(prefix):
        # Main files are removed first, because they mark the others as complete.
        stale_files.remove_files(stale_files.checkpoint_files(prefix))
        tidy(prefix)


def sweep(directory: str, but: SaveFiles | None = None) -> None:
    """Removes stale files from a directory, except those of the save `but`.

    They are from killed processes. No other process may save into the directory.
    """
    if not is_url(directory):
        commit.remove_abandoned(directory)
    listing = Listing.at(directory)
    if but is not None:
        listing = listing.without(but.prefix, but.token)
    for prefix in listing.prefixes():
        mark = stale_files.mark_of(prefix, listing)
        if mark is not None and _is_listed(prefix):
            stale_files.remove_files([mark])
        elif mark is not None:
            remove(prefix)
        with shared_files.left_if_in_use(prefix):
            stale_files.tidy(prefix, listing)


def _is_listed(prefix: str) -> bool:
    """Returns whether the `checkpoint` file lists a checkpoint."""
    listed = location.listed(os.path.dirname(prefix))
    return paths.canonical(prefix) in map(paths.canonical, listed)


def sweep_if_alone(directory: str, but: SaveFiles) -> None:
    """Calls `sweep`, unless a training uses the directory and has swept it."""
    # Object stores have no locks.
    if is_url(directory):
        return
    with if_no_training(directory) as is_alone:
        if is_alone:
            sweep(directory, but)
