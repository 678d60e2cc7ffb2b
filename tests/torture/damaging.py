"""Trials with corrupt and forged checkpoints."""

import collections
import os
import random
from collections.abc import Callable

import h5py
import numpy as np

from keras_tpu_estimator import checkpoints
from keras_tpu_estimator.files.atomic import checksum
from tests.torture.figures import expect
from tests.torture.reading import Outcome, outcomes

_MOST_GROWTH = 64 << 20


def damage(directory: str, number: int) -> dict[str, object]:
    """Truncates checkpoints or flips a bit, and reads them.

    Args:
        directory: An empty directory.
        number: The number of checkpoints.

    Raises:
        ViolationError: A checkpoint was read with other values.
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
    ways = [cut_off if i % 2 else flipped for i in range(number)]
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
        "checkpoints cut off": ways.count(cut_off),
        "of these refused": refused[cut_off],
        "checkpoints with a flipped bit": ways.count(flipped),
        "of these refused, not read correctly": refused[flipped],
    }


def cut_off(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def flipped(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def forge(directory: str) -> dict[str, object]:
    """Reads malicious files with valid checksums.

    Raises:
        ViolationError: A file was read, or needed much memory.
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
    for name, outcome in zip(prefixes, outcomes([*prefixes.values()]), strict=True):
        _check_forgery(name, outcome)
    return {"forged checkpoints refused": len(prefixes)}


def _check_forgery(name: str, outcome: Outcome) -> None:
    # The target of a link is not a variable; everything else is refused.
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
