"""The files of a save, and of the checkpoint that it makes.

A save writes its files beside those of an earlier one of the same step, and its
main file, or the index of a bundle, makes them the checkpoint. What belongs to
none is one question with one answer, before that moment and after it: the files
with the token of another save than the main file's. Nothing else in a directory
of checkpoints is ever removed.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Self

from keras_tpu_estimator.files.atomic import commit
from keras_tpu_estimator.files.atomic.checksum import new_token
from keras_tpu_estimator.files.atomic.checksum import stamp
from keras_tpu_estimator.files.directory import location
from keras_tpu_estimator.files.directory import save_names
from keras_tpu_estimator.files.directory import stale_files
from keras_tpu_estimator.files.directory.save_names import SaveName
from keras_tpu_estimator.files.directory.stale_files import ExistingCheckpoint
from keras_tpu_estimator.files.directory.training_status import if_no_training
from keras_tpu_estimator.ground.storage import paths
from keras_tpu_estimator.ground.storage import shared_files
from keras_tpu_estimator.ground.storage.urls import is_url


@dataclasses.dataclass(frozen=True)
class SaveFiles:
    """The files of one save.

    Attributes:
        prefix: That of the checkpoint.
        token: What tells the save from others of the same step. Defaults to a
            new one.

    Example:

    >>> files = SaveFiles("/run/model.ckpt-20", "0f0f0f0f")
    >>> files.part(0, 2)
    '/run/model.ckpt-20.shard-0-of-2.0f0f0f0f'
    """

    prefix: str
    token: str = dataclasses.field(default_factory=new_token)

    @classmethod
    def at(cls, prefix: str) -> Self | None:
        """Those of the checkpoint that is there.

        Args:
            prefix: That of the checkpoint.

        Returns:
            Its files; `None` if there is none, or another program's.
        """
        token = ExistingCheckpoint.at(prefix).token
        return None if token is None else cls(prefix, token)

    def part(self, number: int, count: int) -> str:
        """The file with parts of variables that a host has.

        Args:
            number: Which of the files.
            count: How many there are.
        """
        return save_names.part(self.prefix, number, count, self.token)

    @property
    def tree(self) -> str:
        """The folder with what Orbax writes."""
        return save_names.tree(self.prefix, self.token)

    def make_tree(self) -> None:
        """Makes that folder, with the mark that it is of this save."""
        paths.make_directory(self.tree)
        with open(os.path.join(self.tree, stale_files.MARK), "wb") as file:
            file.write(stamp(self.token))

    def position(self, host: int, hosts: int) -> str:
        """The file with the position of a host in its input.

        Args:
            host: Which host.
            hosts: How many there are.
        """
        return save_names.position(self.prefix, host, hosts, self.token)

    @property
    def callbacks(self) -> str:
        """The file with the state of callbacks and hooks."""
        return save_names.callbacks(self.prefix, self.token)

    def positions(self) -> list[str]:
        """The positions that are there, of any number of hosts."""
        return self._of_kinds("position")

    def remove_resume_files(self) -> None:
        """Removes what only an interrupted call needs: that one has ended."""
        stale_files.remove_files(self._of_kinds("position", "callbacks"))

    def _of_kinds(self, *kinds: str) -> list[str]:
        """Returns the existing files of this save that are of some kinds."""
        return [
            path
            for path, named in stale_files.listed(self.prefix)
            if named.kind in kinds and named.token == self.token
        ]

    def remove_meta(self) -> None:
        """Removes what describes another bundle at the prefix."""
        stale_files.remove_files([self.prefix + save_names.META])

    def mark_unlisted(self) -> None:
        """Says that the checkpoint is to go, unless the list names it.

        A process may be killed when the main file is there and not listed yet,
        or listed no more and still there.
        """
        path = save_names.unlisted(self.prefix, self.token)
        # An empty file has no content to wait for.
        named = contextlib.nullcontext(path)
        with commit.replacing(path) if is_url(path) else named as name:
            with open(name, "wb"):
                pass

    def unmark(self) -> None:
        """Takes the mark back."""
        stale_files.remove_files([save_names.unlisted(self.prefix, self.token)])

    @contextlib.contextmanager
    def marked_unlisted(self) -> Iterator[None]:
        """Has the mark stay if the `with` block succeeds, or is killed."""
        self.mark_unlisted()
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):
                self.unmark()
            raise

    @contextlib.contextmanager
    def replacing(self, main: str) -> Iterator[None]:
        """Removes the checkpoint that gets another one in its place.

        Args:
            main: The main file that there is at the end of the `with` block.
        """
        before = stale_files.whole(self.prefix)
        yield
        now = {main}
        if main.endswith(location.INDEX):
            data = save_names.data_files(self.prefix)
            now |= {*data, self.prefix + save_names.META}
        # That of the other format first, which may be what readers take.
        stale_files.remove_files(path for path in before if path not in now)
        stale_files.tidy(self.prefix, stale_files.listed(self.prefix))

    @contextlib.contextmanager
    def tidied_on_failure(self, *but: type[BaseException]) -> Iterator[None]:
        """Leaves nothing of the save, if the `with` block fails uncompleted.

        Args:
            *but: Failures in which another process may yet complete it.
        """
        try:
            yield
        except but:
            raise
        except BaseException:
            # The error that is told is the first one.
            with contextlib.suppress(Exception):
                stale_files.tidy(
                    self.prefix, stale_files.listed(self.prefix), self.token
                )
            raise

    @contextlib.contextmanager
    def undone_on_failure(self) -> Iterator[None]:
        """Leaves nothing of the save, if the `with` block fails.

        What it has already put in the place of another checkpoint stays.
        """
        is_new = not location.exists(self.prefix)
        with self.tidied_on_failure():
            try:
                yield
            except BaseException:
                with contextlib.suppress(Exception):
                    if is_new:
                        stale_files.remove_files(stale_files.whole(self.prefix))
                    else:
                        self.unmark()
                raise


def tidy(prefix: str) -> None:
    """Removes what saves have left beside the checkpoint that is there.

    Args:
        prefix: That of the checkpoint. If there is none, all is removed that
            would belong to it.
    """
    stale_files.tidy(prefix, stale_files.listed(prefix))


def remove(prefix: str) -> None:
    """Removes a checkpoint, whoever has written it.

    Args:
        prefix: Its prefix.

    Example:

    >>> import tempfile
    >>> from keras_tpu_estimator import checkpoints
    >>> prefix = checkpoints.save(tempfile.mkdtemp(), 20, {})
    >>> remove(prefix)
    >>> location.exists(prefix)
    False
    """
    with shared_files.left_if_in_use(prefix):
        # Main files first, which say that the others are whole.
        stale_files.remove_files(stale_files.whole(prefix))
        tidy(prefix)


def sweep(directory: str, but: SaveFiles | None = None) -> None:
    """Removes what killed processes have left in a directory.

    Args:
        directory: An existing one, which nobody else saves into.
        but: The files of a save that is being made. Defaults to none.

    Example:

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> open(f"{directory}/mnist.input.zip", "w").close()
    >>> sweep(directory)
    >>> os.listdir(directory)
    ['mnist.input.zip']
    """
    if not is_url(directory):
        commit.remove_abandoned(directory)
    found: dict[str, list[tuple[str, SaveName]]] = {}
    for path, named in stale_files.files_in(directory):
        if but is None or (named.prefix, named.token) != (
            os.path.basename(but.prefix),
            but.token,
        ):
            found.setdefault(named.prefix, []).append((path, named))
    for name, files in found.items():
        prefix = os.path.join(directory, name)
        mark = stale_files.mark_of(prefix, files)
        if mark is not None and _is_listed(prefix):
            stale_files.remove_files([mark])
        elif mark is not None:
            remove(prefix)
        with shared_files.left_if_in_use(prefix):
            stale_files.tidy(prefix, files)


def _is_listed(prefix: str) -> bool:
    """Whether the list of its directory names a checkpoint, in whatever way."""
    listed = location.listed(os.path.dirname(prefix))
    return paths.canonical(prefix) in map(paths.canonical, listed)


def sweep_if_alone(directory: str, but: SaveFiles) -> None:
    """The same, unless a training has the directory, which has swept it.

    Args:
        directory: An existing one.
        but: The files of a save that is being made.
    """
    # There are no locks in a store.
    if is_url(directory):
        return
    with if_no_training(directory) as is_alone:
        if is_alone:
            sweep(directory, but)
