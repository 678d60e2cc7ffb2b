"""Damage of each file of a checkpoint that has several."""

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
# Enough for files of data of their own.
_ROWS = 1 << 14

# Makes other content; `None` deletes the file.
_Way = Callable[[bytes, random.Random], bytes] | None


@dataclasses.dataclass(frozen=True)
class _Damaged:
    """A directory whose newest checkpoint has a damaged file."""

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
        """Copies another directory, and damages the file."""
        shutil.copytree(base, self.directory)
        path = os.path.join(self.directory, self.file)
        with open(path, "rb") as file:
            content = file.read()
        os.remove(path)
        if self.how is not None:
            with open(path, "wb") as file:
                # An empty file has no bit to flip.
                file.write(self.how(content, rng) if content else b"\0")

    def check(self, outcome: Outcome) -> None:
        """Checks that the damage is found, in whatever way it is looked for.

        Args:
            outcome: That of reading the checkpoint.
        """
        expect(outcome.values is None, f"It is found: {self}")
        is_named = _NAME in outcome.error
        expect(is_named, f"The error names it: {self}: {outcome.error}")
        latest = checkpoints.latest_intact(self.directory)
        is_older = latest is not None and latest.endswith(f"-{_OLDER}")
        expect(is_older, f"The other one is taken, not {latest}: {self}")
        with contextlib.redirect_stdout(io.StringIO()):
            code = command.main(["verify", self.directory])
        expect(code == 1, f"`verify` finds it: {self}")


def damage(directory: str, flips: int, way: str) -> dict[str, object]:
    """Damages each file of the newest of two checkpoints, in each way.

    Args:
        directory: An empty directory.
        flips: How many bits are flipped in each file, one at a time.
        way: How they were saved, one of `saves.SPREAD`.

    Returns:
        Figures by what they count.

    Raises:
        ViolationError: It was read, an error does not say what is damaged, or
            training would not go on from the other one.
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
        "of these cut off, emptied, deleted, or with a flipped bit": (len(damaged)),
        "found by reading, by verifying, and before going on": len(found),
        "read wrong, and silently, by Orbax alone": (
            _read_wrong(_tree(newest), damaged) if is_tree else "-"
        ),
    }


def _read_wrong(intact: str, damaged: Sequence[_Damaged]) -> int:
    """How many of them Orbax reads without an error, and not right."""
    trees = [intact, *(each.tree for each in damaged)]
    right, *found = (each.values for each in outcomes(trees, is_alone=True))
    expect(right is not None, "Orbax reads what is intact.")
    return sum(values not in (None, right) for values in found)


def _files_of(prefix: str) -> set[str]:
    """Returns the files of a checkpoint.

    Positions in the input and the state of callbacks are left out: they are
    read only when training resumes, and have checksums of their own.
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
