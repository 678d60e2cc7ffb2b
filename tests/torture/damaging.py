"""Damaged checkpoints, and forged ones."""

import collections
import contextlib
import glob
import io
import itertools
import os
import random
import shutil
from collections.abc import Callable

import h5py
import numpy as np

from keras_tpu_estimator import __main__ as command
from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.files.checkpoints import checksum
from keras_tpu_estimator.files.checkpoints import location
from tests.torture import saves
from tests.torture.figures import expect
from tests.torture.reading import Outcome
from tests.torture.reading import outcomes

_MOST_GROWTH = 64 << 20
# Enough for files of data of their own.
_ROWS = 1 << 14


def damage(directory: str, number: int) -> dict[str, object]:
    """Cuts checkpoints off, or flips a bit of them, and reads them.

    Args:
        directory: An empty directory.
        number: How many.

    Raises:
        ViolationError: One was read with other values.
    """
    rng = random.Random(0)
    values = {
        "dense/kernel": np.random.default_rng(0).normal(size=(64, 64)),
        "dense/bias": np.arange(64, dtype="float32"),
        "seed": np.arange(4, dtype="uint32"),
    }
    whole = checkpoints.save(os.path.join(directory, "whole"), 10, values)
    with open(whole + ".h5", "rb") as file:
        content = file.read()
    ways = [_cut_off if i % 2 else _flipped for i in range(number)]
    prefixes = []
    for index, way in enumerate(ways):
        prefix = os.path.join(directory, f"model.ckpt-{index}")
        with open(prefix + ".h5", "wb") as file:
            file.write(way(content, rng))
        prefixes.append(prefix)
    right, *found = outcomes([whole, *prefixes])
    refused: collections.Counter[Callable[..., bytes]] = collections.Counter()
    for way, prefix, outcome in zip(ways, prefixes, found, strict=True):
        is_same = outcome.values == right.values
        expect(is_same or outcome.values is None, f"{prefix} is not wrong.")
        refused[way] += outcome.values is None
    return {
        "checkpoints cut off": ways.count(_cut_off),
        "of these refused": refused[_cut_off],
        "checkpoints with a flipped bit": ways.count(_flipped),
        "of these refused, not read right": refused[_flipped],
    }


def _cut_off(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def _flipped(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def damage_files(directory: str, flips: int, way: str) -> dict[str, object]:
    """Damages each file of the newest of two checkpoints, in each way.

    Args:
        directory: An empty directory.
        flips: How many bits are flipped in each file, one at a time.
        way: How they were saved, one of `saves.SPREAD`.

    Returns:
        Figures by what they count.

    Raises:
        ViolationError: It was read with other values, an error does not say
            what is damaged, or training would not go on from the other one.
    """
    rng = random.Random(0)
    base = os.path.join(directory, "base")
    for step in (10, 20):
        newest = saves.save(base, step, step, way, rows=_ROWS)
    files = [
        os.path.relpath(path, base)
        for path in glob.glob(newest + ".*/**", recursive=True)
        + glob.glob(newest + ".*")
        # Positions in the input have checksums of their own.
        if os.path.isfile(path) and ".input" not in path
    ]
    ways = [_cut_off, _emptied, None, *[_flipped] * flips]
    damaged = []
    for file, how in itertools.product(sorted({*files}), ways):
        copy = os.path.join(directory, str(len(damaged)))
        shutil.copytree(base, copy)
        _change(os.path.join(copy, file), how, rng)
        damaged.append((copy, file, how))
    prefixes = [os.path.join(c, os.path.basename(newest)) for c, *_ in damaged]
    found = outcomes(prefixes)
    trees = [_tree(prefix) for prefix in prefixes] if way == saves.TREE else []
    alone = outcomes(trees, is_alone=True)
    for (copy, file, how), outcome in zip(damaged, found, strict=True):
        what = f"{file} of {way}, {how}"
        expect(outcome.values is None, f"It is found: {what}")
        is_named = "model.ckpt-20" in outcome.error
        expect(is_named, f"The error names it: {what}: {outcome.error}")
        latest = checkpoints.latest_intact(copy)
        is_older = latest is not None and latest.endswith("model.ckpt-10")
        expect(is_older, f"The other one is taken, not {latest}: {what}")
        with contextlib.redirect_stdout(io.StringIO()):
            code = command.main(["verify", copy])
        # Without its main file it is no checkpoint.
        is_one = location.exists(os.path.join(copy, "model.ckpt-20"))
        expect(code == is_one, f"`verify` finds it: {what}")
    (right,) = outcomes([_tree(newest)], is_alone=True) if trees else [None]
    expect(right is None or right.values is not None, f"It reads it: {right}")
    silent = [
        how
        for (_, _, how), outcome in zip(damaged, alone, strict=False)
        if outcome.values not in (None, right.values)
    ]
    return {
        "files of a checkpoint": len({*files}),
        "of these cut off, emptied, deleted, or with a flipped bit": (
            len(damaged)
        ),
        "found by reading, by verifying, and before going on": len(found),
        "read wrong, and silently, by the library alone": (
            len(silent) if trees else "-"
        ),
    }


def _change(
    path: str,
    how: Callable[[bytes, random.Random], bytes] | None,
    rng: random.Random,
) -> None:
    """Damages a file; deletes it if nobody says how."""
    with open(path, "rb") as file:
        content = file.read()
    os.remove(path)
    if how is not None:
        # A file of its size alone has no bit to flip.
        with open(path, "wb") as file:
            file.write(how(content, rng) if content else b"\0")


def _tree(prefix: str) -> str:
    """The folder of a checkpoint."""
    (folder,) = glob.glob(f"{prefix}.orbax.????????")
    return folder


def _emptied(content: bytes, rng: random.Random) -> bytes:
    return b""


def forge(directory: str) -> dict[str, object]:
    """Reads files with right checksums that no honest program wrote.

    Raises:
        ViolationError: One was read, or much memory was taken for it.
    """
    secret = os.path.join(directory, "secret.h5")
    with h5py.File(secret, "w") as file:
        file["secret"] = np.full(4, 7.0)
    prefixes = {}
    for name, fill in _FORGERIES.items():
        prefixes[name] = os.path.join(directory, f"model.ckpt-{name}")
        with h5py.File(prefixes[name] + ".h5", "w") as file:
            file["global_step"] = np.int64(1)
            fill(file, secret)
        checksum.append(prefixes[name] + ".h5")
    for name, outcome in zip(
        prefixes, outcomes([*prefixes.values()]), strict=True
    ):
        _check_forgery(name, outcome)
    return {"forged checkpoints refused": len(prefixes)}


def _check_forgery(name: str, outcome: Outcome) -> None:
    # What a link leads to is no variable; all else is refused.
    is_harmless = outcome.values is None or [*outcome.values] == ["global_step"]
    expect(is_harmless, f"{name} is refused: {outcome}")
    expect(outcome.grown < _MOST_GROWTH, f"{name} takes no memory: {outcome}")


def _external(file: h5py.File, secret: str) -> None:
    file.create_dataset("v", (4,), "float64", external=[(secret, 0, 32)])


def _external_link(file: h5py.File, secret: str) -> None:
    file["v"] = h5py.ExternalLink(secret, "secret")


def _virtual(file: h5py.File, secret: str) -> None:
    layout = h5py.VirtualLayout((4,), "float64")
    layout[:] = h5py.VirtualSource(secret, "secret", (4,))
    file.create_virtual_dataset("v", layout)


def _huge(file: h5py.File, secret: str) -> None:
    file.create_dataset("v", (1 << 40,), "float32", chunks=(1 << 20,))


def _huge_compressed(file: h5py.File, secret: str) -> None:
    file.create_dataset(
        "v", (1 << 38,), "float32", chunks=(1 << 20,), compression="gzip"
    )


def _text(file: h5py.File, secret: str) -> None:
    file["v"] = "no numbers"


def _compound(file: h5py.File, secret: str) -> None:
    file["v"] = np.zeros(2, [("a", "i4"), ("b", "f4")])


def _reference(file: h5py.File, secret: str) -> None:
    file.create_dataset("v", (1,), h5py.ref_dtype)


_FORGERIES = {
    "external-data": _external,
    "external-link": _external_link,
    "virtual": _virtual,
    "huge": _huge,
    "huge-compressed": _huge_compressed,
    "text": _text,
    "compound": _compound,
    "reference": _reference,
}
