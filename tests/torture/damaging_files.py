"""Trials that corrupt each file of a checkpoint with several files."""

import contextlib
import dataclasses
import glob
import io
import itertools
import os
import random
import shutil
from collections.abc import Callable, Sequence

from keras_tpu_estimator import __main__ as command
from keras_tpu_estimator import checkpoints
from tests.torture import saves
from tests.torture.damaging import cut_off, flipped
from tests.torture.figures import expect
from tests.torture.reading import Outcome, outcomes

_OLDER, _NEWEST = 10, 20
_NAME = f"model.ckpt-{_NEWEST}"
# Large enough for separate data files.
_ROWS = 1 << 14

# Functions that change the content; `None` deletes the file.
_Way = Callable[[bytes, random.Random], bytes] | None


@dataclasses.dataclass(frozen=True)
class _Damaged:
    """A directory whose newest checkpoint has a corrupt file."""

    directory: str
    file: str
    how: _Way

    @property
    def prefix(self) -> str:
        return os.path.join(self.directory, _NAME)

    @property
    def tree(self) -> str:
        """The folder that Orbax has written."""
        return _tree(self.prefix)

    def make(self, base: str, rng: random.Random) -> None:
        """Copies another directory, and corrupts the file."""
        shutil.copytree(base, self.directory)
        path = os.path.join(self.directory, self.file)
        with open(path, "rb") as file:
            content = file.read()
        os.remove(path)
        if self.how is not None:
            with open(path, "wb") as file:
                # An empty file has no bits.
                file.write(self.how(content, rng) if content else b"\0")

    def check(self, outcome: Outcome) -> None:
        """Checks that every kind of check finds the corruption.

        Args:
            outcome: The outcome of reading the checkpoint.
        """
        expect(outcome.values is None, f"It is found: {self}")
        is_named = _NAME in outcome.error
        expect(is_named, f"The error names it: {self}: {outcome.error}")
        latest = checkpoints.latest_intact(self.directory)
        is_older = latest is not None and latest.endswith(f"-{_OLDER}")
        expect(is_older, f"The other checkpoint is used, not {latest}: {self}")
        with contextlib.redirect_stdout(io.StringIO()):
            code = command.main(["verify", self.directory])
        expect(code == 1, f"`verify` finds it: {self}")


def damage(directory: str, flips: int, way: str) -> dict[str, object]:
    """Corrupts each file of the newest of two checkpoints in each way.

    Args:
        directory: An empty directory.
        flips: The number of bits to flip in each file, one at a time.
        way: How the checkpoints were saved, one of `saves.SPREAD`.

    Returns:
        Counts by their description.

    Raises:
        ViolationError: The checkpoint was read, an error does not name the corrupt
            file, or training would not resume from the other checkpoint.
    """
    rng = random.Random(0)
    base = os.path.join(directory, "base")
    for step in (_OLDER, _NEWEST):
        newest = saves.save(base, step, step, way, rows=_ROWS)
    files = sorted(os.path.relpath(path, base) for path in _files_of(newest))
    ways = (cut_off, _emptied, None, *[flipped] * flips)
    damaged = [
        _Damaged(os.path.join(directory, str(number)), file, how)
        for number, (file, how) in enumerate(itertools.product(files, ways))
    ]
    for each in damaged:
        each.make(base, rng)
    found = outcomes([each.prefix for each in damaged])
    for each, outcome in zip(damaged, found, strict=True):
        each.check(outcome)
    is_tree = way == saves.TREE
    return {
        "files of a checkpoint": len(files),
        "of these truncated, emptied, deleted, or with a flipped bit": (len(damaged)),
        "found by reading, by verifying, and before training": len(found),
        "read wrongly by Orbax without an error": (
            _read_wrong(_tree(newest), damaged) if is_tree else "-"
        ),
    }


def _read_wrong(intact: str, damaged: Sequence[_Damaged]) -> int:
    """The number of checkpoints that Orbax reads wrongly without an error."""
    trees = [intact, *(each.tree for each in damaged)]
    right, *found = (each.values for each in outcomes(trees, is_alone=True))
    expect(right is not None, "Orbax reads the intact checkpoint.")
    return sum(values not in (None, right) for values in found)


def _files_of(prefix: str) -> set[str]:
    """Returns the files of a checkpoint.

    Iterator states and callback states are omitted. They are read only when training
    resumes, and have separate checksums.
    """
    found = glob.glob(f"{prefix}.*") + glob.glob(f"{prefix}.*/**", recursive=True)
    return {
        path
        for path in found
        if os.path.isfile(path)
        and not any(part in path for part in (".input", ".callbacks"))
    }


def _tree(prefix: str) -> str:
    (folder,) = glob.glob(f"{prefix}.orbax.????????")
    return folder


def _emptied(content: bytes, rng: random.Random) -> bytes:
    return b""
