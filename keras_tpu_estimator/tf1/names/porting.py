"""The Keras counterparts of TensorFlow 1 names.

`docs/migrating.md` shows all of them, and tests compare it.
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
# TensorFlow 1 names except data sets, which are still recommended.
_OF_TF1 = re.compile(r"\btf\.(?!data\b)")


@dataclasses.dataclass(frozen=True)
class Counterpart:
    """The counterpart of a name.

    Attributes:
        now: The replacement, with names in backticks.
        note: A remark, or "".
        page: The page and section with more details.
        same: Whether it takes the same arguments.
        port: The replacement alone, without an example.
    """

    name: str
    now: str
    note: str
    page: str
    same: bool
    port: str


def find(name: str) -> Counterpart | None:
    """Returns the counterpart of a name or of the closest module that has one.

    It is `None` if the name is not TensorFlow's or needs no replacement.

    >>> find("tf.layers.unheard_of").now
    '`keras.layers`'
    """
    top, _, path = name.partition(".")
    entry = _entry_of(path) if top == "tf" and path else None
    if entry is None:
        return None
    row = catalogue().rows[entry.row]
    port = with_name(entry.port, path.split(".")[entry.path.count(".")])
    now = port
    is_alone = catalogue().of_row(entry.row) == [entry]
    if row.now and is_alone and now == entry.port:
        now = row.now  # An example is better if it is about this name only.
    return Counterpart(
        name,
        _LINK.sub(r"\1", now),
        _LINK.sub(r"\1", row.note),
        f"{PAGE}#{row.section}",
        row.same,
        port,
    )


def advice(name: str) -> str:
    """Returns advice on replacing a name, as a sentence without its full stop.

    >>> advice("tf.contrib.framework.fuse_op")
    'XLA fuses the operations of a step by itself'
    """
    counterpart = find(name)
    if counterpart is None:
        entry = entry_of_name(name.removeprefix("tf."))
        if entry and entry.missing and not _OF_TF1.search(entry.missing):
            return entry.missing.removesuffix(".")
        return f"Port it to Keras or JAX; see {PAGE}"
    note = f" ({counterpart.note})" if counterpart.note else ""
    return f"Its counterpart: {counterpart.now}{note}; see {counterpart.page}"


def _entry_of(path: str) -> Entry | None:
    """Returns the entry with the port of a name, or of the closest module."""
    entries = catalogue().entries
    own_entry = entry_of_name(path)
    if own_entry and own_entry.missing and not own_entry.port:
        return None  # Facts about its module do not apply to it.
    for candidate in (path, *reversed(ancestors(path)[1:])):
        names = [*_other_names(candidate)]
        entries_by_name = [entries.get(name) for name in names]
        if candidate != path:
            entries_by_name += [catalogue().of_module(name) for name in names]
        for entry in entries_by_name:
            if entry and entry.port:
                return entry
    return None


def entry_of_name(path: str) -> Entry | None:
    """Returns the entry of a name without "tf.", under any of its names."""
    entries = catalogue().entries
    candidates = (entries.get(other) for other in _other_names(path))
    return next(filter(None, candidates), None)


def entry_with_port(path: str) -> Entry | None:
    """Returns the entry with the port or the rule of a name itself."""
    entries = catalogue().entries
    candidates = (entries.get(other) for other in _other_names(path))
    return next((e for e in candidates if e and (e.port or e.rule)), None)


def _other_names(path: str) -> Iterator[str]:
    """Yields a name, and other names for it in TensorFlow or the tables."""
    yield path
    if path.startswith("math."):
        yield path.removeprefix("math.")
    for module in (path, *reversed(ancestors(path)[1:])):
        moved = catalogue().moved(module)
        if moved:
            yield from _other_names(moved + path.removeprefix(module))
            return
