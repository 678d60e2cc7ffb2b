"""What a port to Keras writes in place of a name of TensorFlow 1.

`docs/migrating.md` shows all of it; the tests compare.
"""

import dataclasses
import re
from collections.abc import Iterator

from keras_tpu_estimator.tf1.names.catalogue import (
    Entry,
    ancestors,
    catalogue,
    with_name,
)

PAGE = "docs/migrating.md"
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
# What else TensorFlow 1 had; data sets are as good as they were.
_OF_TF1 = re.compile(r"\btf\.(?!data\b)")


@dataclasses.dataclass(frozen=True)
class Counterpart:
    """What replaces a name.

    Attributes:
        name: Of TensorFlow 1.
        now: What to write in its place, with names in backticks.
        note: What else has to be known, or "".
        page: Where more is said.
    """

    name: str
    now: str
    note: str
    page: str


def find(name: str) -> Counterpart | None:
    """The counterpart of a name of TensorFlow 1.

    Args:
        name: As programs write it with `import tensorflow.compat.v1 as tf`.

    Returns:
        That of the name itself or, failing that, of what it is in; `None` if
        it is not TensorFlow's, or is to be left out.

    Example:

    >>> find("tf.math.reduce_mean").now
    '`keras.ops.mean`'
    >>> find("tf.layers.unheard_of").now
    '`keras.layers`'
    """
    top, _, path = name.partition(".")
    entry = _entry_of(path) if top == "tf" and path else None
    if entry is None:
        return None
    row = catalogue().rows[entry.row]
    now = with_name(entry.port, path.split(".")[entry.path.count(".")])
    is_alone = catalogue().of_row(entry.row) == [entry]
    if row.now and is_alone and now == entry.port:
        now = row.now  # An example says more, where it is about this alone.
    return Counterpart(
        name,
        _LINK.sub(r"\1", now),
        _LINK.sub(r"\1", row.note),
        f"{PAGE}#{row.section}",
    )


def advice(name: str) -> str:
    """What to write in place of a name, as a sentence without its full stop.

    Args:
        name: As `find` takes it.

    Example:

    >>> advice("tf.contrib.framework.fuse_op")
    'XLA fuses the operations of a step by itself'
    >>> advice("tf.unheard_of")
    'Port it to Keras or JAX; see docs/migrating.md'
    """
    counterpart = find(name)
    if counterpart is None:
        own = _own_entry(name.removeprefix("tf."))
        if own and own.missing and not _OF_TF1.search(own.missing):
            return own.missing.removesuffix(".")
        return f"Port it to Keras or JAX; see {PAGE}"
    note = f" ({counterpart.note})" if counterpart.note else ""
    return f"Its counterpart: {counterpart.now}{note}; see {counterpart.page}"


def _entry_of(path: str) -> Entry | None:
    """The entry with the port of a name, or of the closest that it is in."""
    entries = catalogue().entries
    own = _own_entry(path)
    if own and own.missing and not own.port:
        return None  # What is said of its module is not about it.
    for each in (path, *reversed(ancestors(path)[1:])):
        names = [*_other_names(each)]
        found = [entries.get(name) for name in names]
        if each != path:
            found += [catalogue().of_module(name) for name in names]
        for entry in found:
            if entry and entry.port:
                return entry
    return None


def _own_entry(path: str) -> Entry | None:
    """That of a name itself, under any that it has."""
    entries = catalogue().entries
    found = (entries.get(each) for each in _other_names(path))
    return next(filter(None, found), None)


def _other_names(path: str) -> Iterator[str]:
    """A name, and what TensorFlow or the tables call it besides."""
    yield path
    if path.startswith("math."):
        yield path.removeprefix("math.")
    for module in (path, *reversed(ancestors(path)[1:])):
        moved = catalogue().moved(module)
        if moved:
            yield from _other_names(moved + path.removeprefix(module))
            return
